"""The table of docs/theory.md, from the paper to functions and tests, names nothing that does not exist."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from corral.tabular import bounds

ROOT = Path(__file__).parents[2]


def rows():
    page = (ROOT / "docs/theory.md").read_text()
    table = page.split("## From the paper to the code")[1].split("\n## ")[0]
    for line in re.findall(r"^\| (.*) \|$", table, re.MULTILINE)[1:]:
        paper, _, functions, tests = re.split(r" (?<!\\)\| ", line)
        yield paper, re.findall(r"`(.*?)`", functions), re.findall(r"`(.*?)`", tests)


ROWS = list(rows())


def find(name):
    """The object called corral.`name`, whose first parts are modules."""
    parts = name.split(".")
    found = importlib.import_module(f"corral.{parts[0]}")
    for k, part in enumerate(parts[1:], 2):
        if not hasattr(found, part):
            importlib.import_module(f"corral.{'.'.join(parts[:k])}")
        found = getattr(found, part)
    return found


@pytest.mark.parametrize(("paper", "functions", "tests"), ROWS, ids=[row[0] for row in ROWS])
def test_every_row_names_functions_and_tests_that_exist(paper, functions, tests):
    assert functions
    assert all(callable(find(name)) for name in functions)
    assert tests
    for test in tests:
        path, name = test.split("::")
        tree = ast.parse((ROOT / path).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test


def test_every_result_of_the_paper_has_a_row():
    named = {name for _, functions, _ in ROWS for name in functions}
    defined = {name for name, value in vars(bounds).items() if getattr(value, "__module__", "") == bounds.__name__}
    results = {name for name in defined if not name.startswith("_")} - {"Bound", "change_bound", "surrogate_terms"}
    assert len(results) == 16
    assert {f"tabular.bounds.{name}" for name in results} <= named
    numbers = " ".join(paper for paper, _, _ in ROWS)
    for result in ("Theorem 1", "Theorem 2", "Algorithm 1", "Corollary 3", "Lemma 3", "Proposition 2"):
        assert result in numbers
    assert {f"({n})" for n in (1, *range(4, 17))} <= set(re.findall(r"\(\d+\)", numbers))
