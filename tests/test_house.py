"""The order of the rooms: which part of the package may import which."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "corral"

# Each room may import those above it in this list, and modules of its own; those on one line do not import each other.
ORDER = (
    ("errors",),
    ("policy",),
    ("certificates", "trust_region"),
    ("tabular",),
    ("config", "devices"),
    ("envs",),
    ("learning",),
    ("algos",),
    ("presets",),
    ("rollout",),
    ("running",),
    ("evaluation",),
    ("certification",),
    ("report",),
    ("experiments",),
    ("display",),
    ("api",),
    ("cli",),
    ("__main__",),
)
LEVEL = {room: level for level, rooms in enumerate(ORDER) for room in rooms}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def room_of(module: str) -> str:
    """corral.envs.engines.point lies in the room envs."""
    return module.split(".")[1]


def imports_of(path: Path) -> set[str]:
    """The rooms that a file imports, wherever in it, also for type checkers only."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name.startswith("corral.")}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "corral":
            inside = {f"corral.{name.name}" for name in node.names} if node.module == "corral" else {node.module}
            found |= {name for name in inside if name != "corral.__version__"}
    return {room_of(name) for name in found}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_rooms_below_its_own(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    above = {room for room in imports_of(path) if room != own and LEVEL[room] >= LEVEL[own]}
    assert not above, f"{path.relative_to(PACKAGE)} imports {', '.join(sorted(above))}"


def test_every_room_has_its_place_in_the_order_and_in_the_table_of_contributing():
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in MODULES}
    assert rooms == set(LEVEL)
    table = (ROOT / "CONTRIBUTING.md").read_text()
    missing = [room for room in rooms if f"`{room}" not in table]
    assert not missing, f"CONTRIBUTING.md does not say what is in {', '.join(missing)}"


def test_at_most_ten_modules_lie_at_the_top_level():
    assert len(list(PACKAGE.glob("*.py"))) <= 10


def test_trust_region_is_pure_mathematics():
    for path in (PACKAGE / "trust_region").glob("*.py"):
        assert imports_of(path) <= {"trust_region", "errors"}, path.name


def test_algorithms_know_neither_each_other_nor_environments():
    for path in (PACKAGE / "algos").glob("*.py"):
        if path.name != "__init__.py":
            assert imports_of(path) <= {"config", "errors", "learning", "trust_region"}, path.name


def test_only_the_run_directory_spells_the_names_of_a_run_s_files():
    """The log names its own file, config_file writes any TOML; every other module asks `RunDirectory`."""
    names = ("config.toml", "policy.npz", "metrics.csv", '"checkpoints"', "seed-")
    owners = {"running/directory.py", "running/log.py"}
    for path in MODULES:
        where = str(path.relative_to(PACKAGE))
        strings = [
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        code = [text for text in strings if "\n" not in text and len(text) < 40]  # docstrings may speak of files
        spelt = [text for text in code if any(name.strip('"') == text or text == f"{name}*" for name in names)]
        assert where in owners or not spelt, f"{where} spells {spelt}"


def test_tests_mirror_the_rooms():
    here = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and not path.name.startswith("_")}
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert here - rooms <= {"attack", "benchmarks", "docs", "fixtures"}
    assert rooms <= here


def test_text_is_read_and_written_as_utf_8_whatever_the_locale():
    """`open` in a text mode, `read_text` and `write_text` name the encoding."""
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            words = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            binary = called == "open" and any(isinstance(word, str) and "b" in word for word in words)
            owner = getattr(getattr(node.func, "value", None), "id", "")
            if called in ("open", "read_text", "write_text") and not binary and owner not in ("os", "webbrowser"):
                named = any(keyword.arg == "encoding" for keyword in node.keywords)
                assert named, f"{path.relative_to(PACKAGE)}, line {node.lineno}"
