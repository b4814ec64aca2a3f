"""The command line: a table of commands, each a thin module that parses, calls the library and prints.

Nothing heavy is imported until a command is chosen, so `corral --help` answers at once.

Exit status: 0 fine; 1 a failure; 2 bad input, a full disk; 10 and 11 verdicts (`BROKEN`, `UNDECIDED`), which neither a crash
of Python's (1) nor a signal gives; 128 + n ended by signal n, such as 130 for Ctrl-C and 141 for a reader that has gone.
"""

import os
import sys
from importlib import import_module

from corral import __version__
from corral.cli import text
from corral.errors import CorralError, nearest
from corral.running.signals import before_the_loop

BROKEN = 10
"""The exit status of a command whose verdict is that a limit, or a claim, is broken."""
UNDECIDED = 11
"""The exit status of a command whose verdict is that nothing can be said yet."""
_LONGEST = 1500
"""Characters of a message: the system repeats a name of any length that was given to it."""
INTERRUPTED = 130
PIPE_CLOSED = 141

# command -> one line for `corral --help`; the code is corral/cli/<command>.py, _ for -, its `main(argv) -> exit status`
COMMANDS: dict[str, str] = {
    "train": "train a policy that keeps its costs under limits",
    "resume": "go on with a run that was interrupted or killed, bit for bit",
    "plot": "one figure of existing runs: returns, and costs against their limits",
    "evaluate": "return and costs of a trained policy, with confidence intervals and a verdict",
    "certify": "a finite-sample certificate that a policy keeps its limits, or that it does not",
    "export": "a trained policy as an ONNX model, a policy file or a folder for the Hugging Face Hub",
    "envs": "list the environments with their sizes, horizons, constraints and limits",
    "render": "a film of an environment or a trained policy, and its paths from above",
    "watch": "a trained policy acting, live on a local page of the browser, with its costs against their limits",
    "reproduce": "the paper's experiments and figures with one command, at three scales",
    "grid": "carry out an experiment file of your own, resumably, and draw its figure and table",
    "report": "one self-contained HTML page about runs: curves, cases, trajectories, settings",
    "bounds": "check every theoretical result of the paper on random finite CMDPs",
    "safety-gymnasium": "set up Safety-Gymnasium in a Python of its own, for `corral train --env-python`",
    "tabular": "exact CPO on a gridworld with hazards, against the linear-programming optimum",
}


def usage() -> str:
    """What `corral --help` prints."""
    commands = "\n".join(f"  {name:<{max(map(len, COMMANDS))}}  {summary}" for name, summary in COMMANDS.items())
    return f"""usage: corral COMMAND [options]

Constrained policy optimization: policies that learn inside their limits.

commands:
{commands}

`corral COMMAND --help` explains a command's options; `corral --version` prints the version."""


def main(argv: list[str] | None = None) -> int:
    """Run `corral` with `argv`; returns the exit status, which the docstring of this module explains."""
    args = list(sys.argv[1:] if argv is None else argv)
    text.show_what_can_be_shown(sys.stdout, sys.stderr)
    try:
        status = _run(args)
        if sys.stdout is not None:  # None where the process was started without one
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output, such as `head`, has gone: nothing is left to say, not even by Python's own last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        _complain("corral: stopped")
        return INTERRUPTED
    return status


def _run(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if args[0] in ("-V", "--version"):
        print(f"corral {__version__}")
        return 0
    name = args[0]
    if name not in COMMANDS:
        near = nearest(name, COMMANDS)
        hint = f"did you mean `corral {near}`?" if near else "`corral --help` lists the commands"
        _complain(f"corral: no command {name[:100]!r}; {hint}")
        return 2
    try:
        with before_the_loop():
            status: int = import_module(f"corral.cli.{name.replace('-', '_')}").main(args[1:])
    except BrokenPipeError:
        raise
    except (CorralError, OSError) as error:
        # An OSError is a full disk, a missing folder, no permission: the system's own words name the file.
        _complain(f"corral {name}: {error}")
        return 2
    except Exception as error:
        said = _explained(error)
        if said is None:
            raise
        _complain(f"corral {name}: {said}")
        return 1
    return status


def _explained(error: Exception) -> str | None:
    """What to say of an error that is not ours: no memory, or a failure of the user's environment; None for others."""
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        first = (str(error).splitlines() or [""])[0][:200]
        return (
            f"not enough memory ({first or 'MemoryError'}): try a smaller batch_size, fewer seeds or smaller networks"
        )
    notes = [note for note in getattr(error, "__notes__", []) if note.startswith("in the environment ")]
    if not notes:
        return None
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = f" ({last.tb_frame.f_code.co_filename}, line {last.tb_lineno})" if last is not None else ""
    return f"{type(error).__name__}: {error} {notes[0]}{where}"


def _complain(line: str) -> None:
    """Print one line to stderr, where there is still somebody to read it; of a very long one its start."""
    line = " ".join(line.splitlines())
    try:
        print(line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…", file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, for Python's own last flush
