"""`corral certify RUN`: a certificate that a policy keeps its limits, or that it does not; `--check FILE` verifies
one."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from corral.certificates.certificate import QUANTILE, Certificate, Statement
from corral.certification.certify import certify, save
from corral.certification.check import check
from corral.certification.subject import trained_in
from corral.cli import BROKEN, UNDECIDED
from corral.cli.flags import parse
from corral.display.progress import Console, bar, say, say_what_is_imported
from corral.errors import CorralError, require

EXIT = {"certified": 0, "refuted": BROKEN, "not yet": UNDECIDED}
"""The exit status of each verdict. A crash ends with 1, bad input with 2: neither can be taken for a verdict."""

_COLOURS = {"certified": "#009E73", "refuted": "#D55E00", "not yet": "#E69F00"}


@dataclass(frozen=True)
class Config:
    """Certify that a policy keeps its limits, from fresh episodes that training never saw.

    For each constraint: an upper and a lower bound on the expected cost of an episode that hold with the stated
    confidence for every distribution of costs (by betting; docs/certificates.md). The exit status is 0 if every limit
    is certified, 10 if one is refuted, 11 if more episodes are needed. With --check: 0 if the certificate holds for the
    policy, 1 if not.
    """

    run: Path | None = field(default=None, metadata={"positional": True})
    """Folder of the run, a policy file or a checkpoint."""
    confidence: float = 0.95
    """With which all upper bounds on expected costs hold together; so do all lower bounds."""
    episodes: int | None = None
    """Fresh episodes, fixed beforehand: 10,000 unless told otherwise. With --until-certain: the most there may be,
    100,000."""
    until_certain: bool = False
    """Play until the verdict is clear; the bounds may be watched, and Ctrl-C stops with what there is."""
    max_step_cost: tuple[float, ...] = ()
    """The most that a step can cost, one number or one for each constraint, where the environment does not state it."""
    return_range: tuple[float, ...] = ()
    """The least and the largest return that an episode can have: gives a lower bound on the expected return."""
    best_of: int = 1
    """This is to be the best of so many certified policies: the confidence is shared among them."""
    deterministic: bool = False
    """Certify the policy that takes the most likely action, which is another one than that which was trained."""
    stream: int = 0
    """Number of the stream of episodes. To try streams until one certifies would make the confidence a lie."""
    out: Path | None = None
    """The certificate file; by default none is written."""
    check: Path | None = None
    """Verify this certificate instead: against RUN, or against the policy that it names."""
    json: bool = False
    """Print the certificate as JSON, without the costs of the single episodes; with --check also whether it holds."""


def main(argv: list[str]) -> int:
    """Run the command; the verdict as exit status."""
    config = parse(Config, argv, "certify")
    if config.check is not None:
        require(config.out is None, "--out writes a new certificate, and --check makes none: leave one of them out")
        return _check(config.check, config.run, config.json)
    require(config.run is not None, "RUN is missing: `corral certify --help` explains it")
    require(len(config.return_range) in (0, 2), f"return-range takes two numbers, got {len(config.return_range)}")
    assert config.run is not None
    say_what_is_imported(trained_in(config.run).env, str(config.run))
    with _progress(config.until_certain) as advance:
        found = certify(
            config.run,
            confidence=config.confidence,
            episodes=config.episodes,
            until_certain=config.until_certain,
            max_step_cost=config.max_step_cost[0] if len(config.max_step_cost) == 1 else config.max_step_cost or None,
            return_range=(config.return_range[0], config.return_range[1]) if config.return_range else None,
            best_of=config.best_of,
            deterministic=config.deterministic,
            stream=config.stream,
            progress=advance,
        )
    if config.out is not None:
        save(found, config.out)
    if config.json:
        print(json.dumps(_told(found)))
    else:
        _print(found)
        if config.out is not None:
            print(f"certificate: {config.out}")
    return EXIT[found.verdict]


def _told(found: Certificate) -> dict[str, Any]:
    """A certificate for programs, without the costs of the single episodes."""
    return {name: part for name, part in json.loads(found.text()).items() if name not in ("costs", "sha256")}


def _check(path: Path, policy: Path | None, as_json: bool) -> int:
    require(path.is_file(), f"there is no certificate {path}")
    try:
        found = check(path, policy)
    except CorralError as error:
        print(json.dumps({"holds": False, "refused": str(error)}) if as_json else f"REFUSED: {error}")
        return 1
    if as_json:
        print(json.dumps({"holds": True} | _told(found)))
        return 0
    print(f"{path} holds for {policy or 'its policy'}: its bounds follow from its {found.episodes['count']:,} episodes")
    print(_headline(found))
    return 0


@contextmanager
def _progress(anytime: bool) -> Iterator[Callable[[int, int, tuple[Statement, ...]], None]]:
    """A bar of episodes; where the bounds may be watched, they are: on the bar's title, or in lines elsewhere."""
    shown = 0
    if anytime and sys.stderr.isatty():
        with Console(stderr=True).status("the first episodes …") as status:
            yield lambda done, most, found: status.update(_line(done, found))
        return
    with bar("episodes") as advance:

        def tell(done: int, most: int, found: tuple[Statement, ...]) -> None:
            nonlocal shown
            if not found:
                advance(done, most)
            elif done >= 1.5 * shown:  # ever rarer, as the bounds change ever less
                shown = done
                say(_line(done, found))

        yield tell


def _line(done: int, found: tuple[Statement, ...]) -> str:
    parts = [f"{s.name} {s.mean:.4g}, at least {s.low:.4g}, at most {s.high:.4g}, limit {s.limit:g}" for s in found]
    return f"{done:,} episodes: {'; '.join(parts)}"


def _print(found: Certificate) -> None:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    columns = (
        "",
        "mean",
        "at least",
        "at most",
        "limit",
        f"{QUANTILE:.0%} of episodes under",
        "P(episode > limit)",
        "verdict",
    )
    for name in columns:
        table.add_column(name, justify="left" if name in ("", "verdict") else "right", no_wrap=True)
    earned = found.earned
    table.add_row("return", *(_number(earned[k]) for k in ("mean", "low")), *[""] * 5)
    for s in found.constraints:
        numbers = (_number(x) for x in (s.mean, s.low, s.high, s.limit, s.quantile))
        table.add_row(f"cost {s.name}", *numbers, f"≤ {s.exceeds:.2%}", f"[{_COLOURS[s.verdict]}]{s.verdict}[/]")
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    for s in found.constraints:
        if s.bernstein is not None:
            print(f"{s.name}: empirical Bernstein, in closed form, gives at most {s.bernstein:.4g}")
    print(_headline(found))
    print("assumed: " + "; ".join(found.assumptions))


def _headline(found: Certificate) -> str:
    """The verdict in one line."""
    what = f"{found.environment['name']}, {found.episodes['count']:,} episodes, policy {found.policy['sha256'][:12]}"
    best_of = found.episodes["best_of"]
    sure = f"with confidence {found.confidence:.6g}" + (f" as the best of {best_of}" if best_of > 1 else "")
    if found.verdict == "certified":
        parts = [f"{s.name} at most {s.high:.4g} (limit {s.limit:g})" for s in found.constraints]
        return f"CERTIFIED {sure}: expected cost of {', '.join(parts)}; {what}"
    if found.verdict == "refuted":
        parts = [
            f"{s.name} at least {s.low:.4g} (limit {s.limit:g})" for s in found.constraints if s.verdict == "refuted"
        ]
        return f"REFUTED {sure}: expected cost of {', '.join(parts)}; {what}"
    parts = [f"{s.name} {_more(s)}" for s in found.constraints if s.verdict == "not yet"]
    return f"NOT YET: {', '.join(parts)}; {what}{_advice(found)}"


def _advice(found: Certificate) -> str:
    """How to go on where more episodes would decide: not by looking again and again with bounds for a single look."""
    if found.episodes["form"] == "anytime" or all(s.more is None for s in found.constraints):
        return ""
    return (
        ". To repeat this with ever more --episodes would make the confidence a lie: --until-certain may look as often as "
        "it likes (docs/certificates.md)"
    )


def _more(s: Statement) -> str:
    if s.more is None:
        return f"too close to its limit of {s.limit:g} for any number of episodes up to two million"
    way = "certify" if s.mean <= s.limit else "refute"
    return f"would take about {s.more:,} more episodes to {way}, if they are like these"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
