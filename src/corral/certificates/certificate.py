"""A certificate: what was shown of a policy, with which confidence, under which assumptions, and proof of which policy.

It is a JSON file. `policy.sha256` is that of the policy file, as `sha256sum` prints it; `sha256` covers everything else
in the certificate, and the costs of all episodes are in it, so that whoever reads it can compute the bounds again
(`verify`).
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float

from corral.certificates import bounds
from corral.errors import CorralError, brief, require

Verdict = Literal["certified", "refuted", "not yet"]

QUANTILE = 0.95
"""The share of single episodes that the quantile in a certificate is about."""

_FORMAT = 1
_MOST = 2_000_000  # episodes that an estimate of how many are needed looks ahead


@dataclass(frozen=True)
class Statement:
    """What the episodes say of one constraint."""

    name: str
    limit: float
    """On the expected cost of an episode, J_C."""
    largest: float
    """The most that an episode can cost; the bounds rest on it."""
    mean: float
    """Of the episodes seen."""
    low: float
    """J_C is at least this, with the statement's confidence."""
    high: float
    """J_C is at most this, with the statement's confidence."""
    bernstein: float | None
    """An upper bound in closed form, beside the one by betting; None where the number of episodes was not fixed
    beforehand."""
    exceeds: float
    """A single episode costs more than the limit with at most this probability, with the statement's confidence."""
    quantile: float | None
    """At most 5% of single episodes cost more than this; None where the number of episodes was not fixed, or is too
    small."""
    verdict: Verdict
    more: int | None
    """About how many more episodes would decide it, if they are like those seen; None: decided, or no number would."""


def state(
    name: str,
    limit: float,
    costs: Float[np.ndarray, " n"],
    largest: float,
    alpha: float,
    anytime: bool,
    ahead: bool = True,
) -> Statement:
    """Judge the costs of n independent episodes, none of which can be over `largest`.

    With `ahead`, also estimate how many more would decide, which takes seconds where they are many.
    """
    low, high = bounds.mean_interval(costs, largest, alpha, anytime=anytime)
    verdict: Verdict = "certified" if high <= limit else "refuted" if low > limit else "not yet"
    over = costs > limit
    if anytime:
        exceeds = bounds.upper_mean(over.astype(float), 1.0, alpha, anytime=True)
    else:
        exceeds = bounds.upper_probability(int(over.sum()), len(costs), alpha)
    quantile = math.inf if anytime else bounds.upper_quantile(costs, QUANTILE, alpha)
    return Statement(
        name=name,
        limit=float(limit),
        largest=float(largest),
        mean=float(np.mean(costs)),
        low=low,
        high=high,
        bernstein=None if anytime else bounds.empirical_bernstein(costs, largest, alpha),
        exceeds=exceeds,
        quantile=quantile if math.isfinite(quantile) else None,
        verdict=verdict,
        more=None if verdict != "not yet" or not ahead else more_episodes(costs, limit, largest, alpha, anytime),
    )


def more_episodes(
    costs: Float[np.ndarray, " n"], limit: float, largest: float, alpha: float, anytime: bool
) -> int | None:
    """About how many more episodes would decide, if they are like those seen: these are repeated until the bound is
    clear.

    None where they lie so close to the limit that two million would not.
    """
    under = float(np.mean(costs)) <= limit

    def decided(total: int) -> bool:
        repeated = np.resize(costs, total)
        if under:
            return bounds.upper_mean(repeated, largest, alpha, anytime=anytime) <= limit
        return bounds.lower_mean(repeated, largest, alpha, anytime=anytime) > limit

    n = len(costs)
    low, high = n, 2 * n
    while not decided(high):
        low, high = high, 2 * high
        if high > _MOST:
            return None
    for _ in range(4):  # to a sixteenth of the last doubling
        middle = (low + high) // 2
        low, high = (low, middle) if decided(middle) else (middle, high)
    return high - n


@dataclass(frozen=True)
class Certificate:
    """The content of a certificate file."""

    verdict: Verdict
    """Certified if every constraint is, refuted if any is, else not yet."""
    confidence: float
    """All upper bounds on J_C hold together with at least this probability, and so do all lower bounds."""
    constraints: tuple[Statement, ...]
    earned: dict[str, float | None]
    """The return: the mean seen, what half of all episodes reach at least, and a lower bound on its expectation if its
    range was given."""
    policy: dict[str, Any]
    """file, sha256, actions: "drawn" as in training, or "most likely"."""
    environment: dict[str, Any]
    """name, task, horizon, engine."""
    episodes: dict[str, Any]
    """count, form ("fixed" or "anytime"), best_of, broken, and the stream of random numbers: seed, stream."""
    versions: dict[str, str]
    assumptions: tuple[str, ...]
    costs: dict[str, list[float]] = field(repr=False)
    """The cost of every episode by constraint, in the order in which the bets were made."""
    made: str
    """When, in UTC."""

    def text(self) -> str:
        """The file's content."""
        content = {"corral_certificate": _FORMAT} | asdict(self)
        return json.dumps(content | {"sha256": _digest(content)}, indent=1, allow_nan=False) + "\n"


def alpha_of(confidence: float, constraints: int, best_of: int) -> float:
    """What each statement may fail with."""
    return bounds.split(confidence, constraints, best_of)


def overall(constraints: tuple[Statement, ...]) -> Verdict:
    """The verdict on all constraints together."""
    found = {c.verdict for c in constraints}
    return "refuted" if "refuted" in found else "not yet" if "not yet" in found else "certified"


def read(path: Path | str) -> Certificate:
    """The certificate in a file whose content matches its hash: whole, but anybody can have written it."""
    with of_its_form(path):
        content = json.loads(
            Path(path).read_text(encoding="utf-8"), object_pairs_hook=_each_once, parse_constant=_no_number
        )
        stored, version = content.pop("sha256"), content["corral_certificate"]
        require(stored == _digest(content), f"{path} has been altered: its content does not match its hash")
        require(version <= _FORMAT, f"{path} has format {version}, which this version of Corral does not know")
        del content["corral_certificate"]
        for part, kinds in _KINDS.items():
            for name, kind in kinds.items():
                _require_kind(f"{part}.{name}", content[part][name], kind)
        for name, value in content["environment"]["task"].items():
            _require_kind(f"environment.task.{name}", value, int | float)
        content["constraints"] = tuple(Statement(**c) for c in content["constraints"])
        content["assumptions"] = tuple(content["assumptions"])
        return Certificate(**content)


_KINDS: dict[str, dict[str, type]] = {
    "policy": {"file": str, "sha256": str, "actions": str},
    "environment": {"name": str, "task": dict, "horizon": int, "engine": str},
    "episodes": {"count": int, "form": str, "best_of": int, "broken": int, "seed": int, "stream": int},
}
"""What the tables of a certificate hold."""


@contextmanager
def of_its_form(path: Path | str) -> Iterator[None]:
    """Turn whatever malformed content of a certificate makes fail into one refusal."""
    try:
        yield
    except CorralError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise CorralError(f"{path} is no certificate of Corral: {brief(error)}") from error


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table of JSON. Of a name that comes twice, other readers may take the other value."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)} is in it twice")
    return found


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _require_kind(name: str, value: Any, kind: Any) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {brief(value)}")


def verify(certificate: Certificate) -> None:
    """Compute every bound again from the costs in the certificate; CorralError if one is not what it says."""
    form = certificate.episodes["form"]
    require(form in ("fixed", "anytime"), f"the certificate's number of episodes is {form!r}, not fixed or anytime")
    anytime = form == "anytime"
    names = [said.name for said in certificate.constraints]
    require(0 < len(names) == len(set(names)), f"the certificate is about the constraints {names}")
    alpha = alpha_of(certificate.confidence, len(certificate.constraints), certificate.episodes["best_of"])
    require(certificate.verdict in get_args(Verdict), f"the certificate's verdict is {certificate.verdict!r}")
    require(certificate.verdict == overall(certificate.constraints), "the verdict is not that of its constraints")
    for said in certificate.constraints:
        costs = np.asarray(certificate.costs[said.name], float)
        require(len(costs) == certificate.episodes["count"], f"{said.name} has the costs of {len(costs)} episodes")
        found = state(said.name, said.limit, costs, said.largest, alpha, anytime)
        for name, value in asdict(found).items():
            stated = getattr(said, name)
            same = stated == value or (_number(stated) and _number(value) and math.isclose(stated, value, rel_tol=1e-9))
            require(same, f"the certificate says {name} {stated} of {said.name}, and its episodes say {value}")


def _number(value: Any) -> bool:
    return isinstance(value, int | float)


def _digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content in one canonical spelling."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
