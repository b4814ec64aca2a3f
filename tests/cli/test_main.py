"""The command itself: exit statuses, outputs of any encoding, readers that leave, Ctrl-C at any moment."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from toys import Stub, stubbed

import corral.cli
from corral.cli import COMMANDS, main, text
from corral.cli.evaluate import main as evaluate_main
from corral.config import Config
from corral.evaluation import Evaluation, estimate, judge
from corral.running import config_file
from corral.running.directory import RunDirectory

TRAIN = ["train", "point-gather", "--iterations", "9", "--checkpoint-every", "50", "--out"]


class Stream(io.TextIOWrapper):
    """A stream of an encoding, as the system hands it to Python."""

    def __init__(self, encoding):
        super().__init__(io.BytesIO(), encoding=encoding, errors="strict", write_through=True)

    @property
    def shown(self):
        return self.buffer.getvalue().decode(self.encoding)


@pytest.fixture(params=["ascii", "latin-1", "utf-8"])
def stream(request):
    return Stream(request.param)


def test_training_speaks_every_encoding(stream, tmp_path):
    with stubbed(), contextlib.redirect_stdout(stream):
        assert main([*TRAIN, str(tmp_path / "run")]) == 0
    assert "9/9  return" in stream.shown
    assert "figure.png" in stream.shown
    assert RunDirectory(tmp_path / "run").finished


def test_help_speaks_every_encoding(stream):
    for command in COMMANDS:
        with pytest.raises(SystemExit) as left, contextlib.redirect_stdout(stream):
            main([command, "--help"])
        assert left.value.code == 0
    assert ("λ of generalised" in stream.shown) == (stream.encoding == "utf-8")
    assert ("lambda of generalised" in stream.shown) == (stream.encoding != "utf-8")


def test_updates_that_were_not_finite_are_mentioned_at_the_end(tmp_path, monkeypatch, capsys):
    """One of nine, which would be too few to mention had another reason refused it."""
    true_iterate = Stub.iterate

    def iterate(self, state, plan):
        state, (row,) = true_iterate(self, state, plan)
        wild = {"case": "not_finite", "accepted": False, "tried": 15, "rejected_not_finite": 15}
        return state, [row | wild if row["iteration"] == 4 else row]

    monkeypatch.setattr(Stub, "iterate", iterate)
    with stubbed():
        assert main([*TRAIN, str(tmp_path / "run")]) == 0
    (note,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note ")]
    assert note.startswith("note     1 of 9 updates were refused, the last because of ")


def test_a_file_name_that_is_no_text_is_shown_somehow(stream, tmp_path):
    name = os.fsdecode(b"run-\xff")
    with stubbed(), contextlib.redirect_stdout(stream):
        assert main([*TRAIN, str(tmp_path / name)]) == 0
    assert "run-?/figure.png" in stream.shown


def test_files_are_utf_8_whatever_the_locale(tmp_path):
    file = tmp_path / "config.toml"
    file.write_bytes('# λ\nenv = "näher:Tür-v0"\n'.encode())
    code = (
        "import sys; from pathlib import Path; from corral.running import config_file; "
        "print(ascii(config_file.load(Path(sys.argv[1])).env))"
    )
    # Without its UTF-8 mode Python would read text in the encoding of the locale, ASCII.
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-c", code, str(file)],
        env=os.environ | {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == ascii("näher:Tür-v0"), done.stderr


@pytest.mark.parametrize(
    ("character", "likeness"), [("⠁", "'"), ("⡀", "."), ("⣿", ":"), ("±", "+-"), ("≤", "<="), ("│", "|"), ("☃", "?")]
)
def test_what_an_encoding_lacks_has_a_likeness(character, likeness):
    assert text.plain(character) == likeness
    assert f"a{character}b".encode("ascii", "corral") == f"a{likeness}b".encode()


# -- exit statuses -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("costs", "status"), [([0.0, 1.0], 0), ([9.0, 11.0], 10), ([0.0, 10.0], 11)])
def test_verdicts_have_statuses_that_no_crash_has_in_every_encoding(costs, status, stream, tmp_path, monkeypatch):
    """500 episodes of each of two costs against a limit of 5."""
    verdict = judge("c", 5.0, np.repeat(costs, 500))
    found = Evaluation(0, Path("policy.npz"), 1000, False, estimate(np.array([1.0, 2.0])), (verdict,))
    config_file.save(Config("point-gather"), tmp_path / "config.toml")
    monkeypatch.setattr(sys.modules[evaluate_main.__module__], "evaluate", lambda *given: [found])
    with contextlib.redirect_stdout(stream):
        assert main(["evaluate", str(tmp_path)]) == status
    assert stream.shown.splitlines()[-1].startswith({0: "MET", 10: "BROKEN", 11: "OPEN"}[status])
    assert ("P(cost ≤ limit)" in stream.shown) == (stream.encoding == "utf-8")


def test_a_reader_that_leaves_costs_nothing(tmp_path, monkeypatch, capfd):
    """As in `corral train … | head -3`."""
    reading, writing = os.pipe()
    rows = []
    true_update = corral.cli.import_module("corral.display.training").Display.update

    def update(self, row):
        rows.append(row)
        if len(rows) == 3:
            os.close(reading)
        true_update(self, row)

    monkeypatch.setattr("corral.display.training.Display.update", update)
    with open(writing, "w", buffering=1) as pipe, stubbed(), contextlib.redirect_stdout(pipe):
        assert main([*TRAIN, str(tmp_path / "run")]) == 141
    assert list(RunDirectory(tmp_path / "run").checkpoints()) == [3]
    assert f"nobody reads the output any more; go on with: corral resume {tmp_path / 'run'}" in capfd.readouterr().err


def failing(error, monkeypatch):
    def fails(argv):
        raise error

    monkeypatch.setattr("corral.cli.envs.main", fails)
    return main(["envs"])


def test_a_failing_environment_is_named_with_the_line_that_failed(monkeypatch, capsys):
    error = RuntimeError("motor driver lost")
    error.add_note("in the environment Arm-v0, in its step")
    assert failing(error, monkeypatch) == 1
    line = capsys.readouterr().err
    assert line.startswith("corral envs: RuntimeError: motor driver lost in the environment Arm-v0, in its step (")
    assert "test_main.py, line" in line


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")]
)
def test_no_memory_is_said_in_a_line(error, monkeypatch, capsys):
    assert failing(error, monkeypatch) == 1
    assert capsys.readouterr().err.startswith("corral envs: not enough memory (")


def test_a_message_of_any_length_is_one_line_that_can_be_read(monkeypatch, capsys):
    assert failing(OSError(36, "File name too long", "9" * 5000), monkeypatch) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "File name too long" in line
    assert len(line) < 1600


def test_a_mistake_of_ours_shows_its_traceback(monkeypatch):
    with pytest.raises(RuntimeError, match="a bug"):
        failing(RuntimeError("a bug"), monkeypatch)


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------

PRESSED = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r} and not pressed:
            pressed.append(name)
            {swallow}
pressed = []
sys.meta_path.insert(0, Finder())
sys.argv = ["corral", "train", "point-gather", "--out", {out!r}]
from corral.cli import main
sys.exit(main())
"""
KILL = "os.kill(os.getpid(), signal.SIGINT)"


@pytest.mark.parametrize(
    ("module", "swallow"),
    [
        ("gymnasium", KILL),
        ("jax", KILL),
        ("corral.rollout.device", f"\n            try: {KILL}\n            except BaseException: pass"),
    ],
    ids=["while Gymnasium is imported", "while JAX is imported", "swallowed by a library"],
)
def test_ctrl_c_while_modules_are_imported_ends_in_a_line(module, swallow, tmp_path):
    code = PRESSED.format(module=module, swallow=swallow, out=str(tmp_path / "run"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
