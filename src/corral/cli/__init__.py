"""The command line: a table of commands, each a thin module that parses, calls the library and prints.

Nothing heavy is imported until a command is chosen, so `corral --help` answers at once.
"""

import os
import sys
from importlib import import_module

from corral import __version__
from corral.errors import CorralError, nearest

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
    """Run `corral` with `argv`; returns the exit status: 0 fine, 1 the check failed, 2 bad input.

    `corral certify` has two more, which nothing else returns: 10 refuted, 11 not yet.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output, such as `head`, has gone: nothing is left to say, not even by Python's own last flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
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
        print(f"corral: no command {name!r}; {hint}", file=sys.stderr)
        return 2
    try:
        status: int = import_module(f"corral.cli.{name.replace('-', '_')}").main(args[1:])
    except BrokenPipeError:
        raise
    except (CorralError, OSError) as error:
        # An OSError is a full disk, a missing folder, no permission: the system's own words name the file.
        print(f"corral {name}: {error}", file=sys.stderr)
        return 2
    return status
