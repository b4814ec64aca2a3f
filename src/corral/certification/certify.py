"""Certify a policy: play fresh episodes of it, and write down what they show."""

import math
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

from corral.certificates import bounds, certificate
from corral.certificates.certificate import Certificate, Statement
from corral.certification.episodes import Seen, portions
from corral.certification.subject import Subject, load_subject, open_sampler, ranges_of
from corral.envs.contract import Env, HostEnv
from corral.errors import require, require_in
from corral.rollout.device import DeviceSampler
from corral.rollout.host import HostSampler
from corral.rollout.sampler import Sampler
from corral.running import standalone
from corral.running.files import write_atomically

Progress = Callable[[int, int, tuple[Statement, ...]], None]
"""Hears of episodes done, of the most there may be, and, where sampling may stop at any time, of the statements so far."""


def certify(
    policy: Path | str,
    *,
    confidence: float = 0.95,
    episodes: int | None = None,
    until_certain: bool = False,
    max_step_cost: float | tuple[float, ...] | None = None,
    return_range: tuple[float, float] | None = None,
    best_of: int = 1,
    deterministic: bool = False,
    stream: int = 0,
    env: Env | HostEnv | Sampler | None = None,
    progress: Progress = lambda done, most, statements: None,
) -> Certificate:
    """Certify, or refute, that a policy keeps its limits, from fresh episodes of it.

    `policy` is the folder of a run, a policy file or a checkpoint. All upper bounds on expected costs hold together with
    probability `confidence`, and so do all lower bounds. `episodes` is their number, 10,000 by default; with
    `until_certain` it is the most there may be (100,000 by default), and sampling stops as soon as every constraint is
    decided.
    `max_step_cost` is the largest cost of a step, one number or one for each constraint, where the environment does not
    state it. `return_range` is the least and the largest return of an episode, if known. `best_of` is K where this
    policy is to be the best of K certified ones. `stream` numbers independent sets of episodes. `env` is needed where
    the policy was trained on an environment that has no name, and must say of itself what that one did.
    """
    most = episodes if episodes is not None else 100_000 if until_certain else 10_000
    require(most >= 2, f"episodes must be at least 2, got {most}")
    require_in("confidence", confidence, 0, 1, closed="()")
    if return_range is not None:
        least, largest = return_range
        fits = math.isfinite(least) and math.isfinite(largest) and least < largest
        require(fits, f"return_range must be two finite numbers, the smaller one first, got {least:g} and {largest:g}")
    require(best_of >= 1, f"best_of must be at least 1, got {best_of}")
    require(0 <= stream < 2**31, f"stream must lie in [0, 2^31), got {stream}")
    with open_sampler(Path(policy), env) as sampler:
        subject = load_subject(Path(policy), sampler.spec)
        require(
            len(subject.spec.constraints) > 0, f"{subject.spec.name} has no constraints: there is nothing to certify"
        )
        ranges = ranges_of(subject, max_step_cost)
        alpha = certificate.alpha_of(confidence, len(ranges), best_of)
        seen = Seen(subject, ranges, alpha, until_certain, stream, None if return_range is None else return_range[0])
        try:
            for sums, broken in portions(sampler, subject, ranges, stream, most, deterministic):
                subject.require_unchanged()
                seen.add(sums, broken)
                statements = seen.statements(ahead=False) if until_certain else ()
                progress(seen.count, most, statements)
                if statements and certificate.overall(statements) != "not yet":
                    break
        except KeyboardInterrupt:
            # An anytime bound holds whenever and for whatever reason one stops; a bound for a fixed number does not.
            if not until_certain or seen.count < 2:
                raise
        subject.require_unchanged()
        return _certificate(subject, seen, sampler, confidence, best_of, deterministic, stream, return_range)


def save(found: Certificate, path: Path) -> None:
    """Write a certificate file."""
    write_atomically(path, found.text().encode())


def _certificate(
    subject: Subject,
    seen: Seen,
    sampler: Sampler,
    confidence: float,
    best_of: int,
    deterministic: bool,
    stream: int,
    return_range: tuple[float, float] | None,
) -> Certificate:
    statements, spec, costs = seen.statements(), subject.spec, seen.costs
    return Certificate(
        verdict=certificate.overall(statements),
        confidence=confidence,
        constraints=statements,
        earned=_earned(seen, certificate.alpha_of(confidence, 1, best_of), return_range),
        policy={
            "file": str(subject.source.resolve()),
            "sha256": subject.sha256,
            "actions": "most likely" if deterministic else "drawn",
        },
        environment={"name": spec.name, "task": subject.task, "horizon": spec.horizon, "engine": _engine(sampler)},
        episodes={
            "count": seen.count,
            "form": "anytime" if seen.anytime else "fixed",
            "best_of": best_of,
            "broken": seen.broken,
            "seed": subject.seed,
            "stream": stream,
        },
        versions=standalone.versions() | _engines(),
        assumptions=_assumptions(statements, seen),
        costs={c.name: costs[:, k].tolist() for k, c in enumerate(spec.constraints)},
        made=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _earned(seen: Seen, alpha: float, ends: tuple[float, float] | None) -> dict[str, float | None]:
    """The mean return seen, and lower bounds, each with its own confidence."""
    returns = seen.returns
    half = -math.inf if seen.anytime else bounds.lower_quantile(returns, 0.5, alpha)
    low = None
    if ends is not None:
        least, largest = bounds.rounded_range(*ends)
        for found in (returns.min(), returns.max()):
            said = f"outside of the return_range {ends[0]:g} {ends[1]:g}"
            require(bool(least <= found <= largest), f"an episode had a return of {found:g}, {said}")
        low = bounds.lower_mean(returns, largest, alpha, least=least, anytime=seen.anytime)
    return {"mean": float(returns.mean()), "half_reach": half if math.isfinite(half) else None, "low": low}


def _assumptions(statements: tuple[Statement, ...], seen: Seen) -> tuple[str, ...]:
    ranges = ", ".join(f"{s.largest:.10g} of {s.name}" for s in statements)
    told = [
        "the machine meets the episodes that the simulator draws, and behaves as the simulator does",
        "the episodes are independent: each starts from its own random numbers, which training never used",
        f"no episode can cost less than 0 nor more than {ranges}",
    ]
    if seen.anytime:
        told.append("the number of episodes was not fixed: the bounds hold at every number at once, whenever one stops")
    else:
        told.append("the number of episodes was fixed before the first was played")
    if seen.broken:
        told.append(f"{seen.broken} episodes whose simulation broke count as the costliest there can be")
    return tuple(told)


def _engines() -> dict[str, str]:
    """The versions of the simulators and environments' packages that this process has imported."""
    known = {name: sys.modules[name] for name in ("gymnasium", "mujoco") if name in sys.modules}
    return {name: str(getattr(module, "__version__", "unknown")) for name, module in known.items()}


def _engine(sampler: Sampler) -> str:
    """What moved the robots."""
    env: Any = None
    if isinstance(sampler, DeviceSampler):
        env = sampler.env
    elif isinstance(sampler, HostSampler):
        env = sampler.envs[0]
    return f"{type(env or sampler).__name__} on {jax.default_backend()}"
