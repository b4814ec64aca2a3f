"""Check every result of the CPO paper on random CMDPs and pairs of policies, and measure how tight each one is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float64

from corral.errors import require
from corral.tabular import bounds as paper
from corral.tabular import examples
from corral.tabular import older_bounds as older
from corral.tabular.bounds import Bound
from corral.tabular.cmdp import CMDP, Evaluation, evaluate, require_count
from corral.tabular.measures import promise_of
from corral.tabular.optimum import interior_policy

CONSTRAINTS = 2
LONGEST_HORIZON = 100.0
"""1/(1−γ) is log-uniform between 1 and this."""
MIXTURE_SHARE = 0.1
CANDIDATES = 64
"""The number of policies among which an update takes its argmax, π_k included."""

Claim = tuple[str, Bound, Bound | None]
"""The name of a result, its claim on one instance, and the older bound's claim on the same instance, if there is one."""


@dataclass
class Tally:
    """Statistics over all instances of one result."""

    result: str
    errors: list[float] = field(default_factory=list)
    allowances: list[float] = field(default_factory=list)
    older_allowances: list[float] = field(default_factory=list)
    """The allowance of the older bound on each instance; NaN where there is no older bound."""
    pairs: list[str] = field(default_factory=list)
    """How the two policies of each instance were drawn."""
    violations: int = 0
    identity: bool = False
    """Whether the result is an equality."""

    def add(self, pair: str, bound: Bound, older_bound: Bound | None) -> None:
        """Count one instance."""
        self.errors.append(bound.error)
        self.allowances.append(bound.allowance)
        self.older_allowances.append(older_bound.allowance if older_bound else np.nan)
        self.pairs.append(pair)
        self.violations += not bound.holds
        self.identity = bound.side == "both" and bound.allowance == 0

    def summary(self) -> dict[str, str | int | float | None]:
        """One row of the table: counts, tightness (error/allowance) and the median ratio of older to new allowance."""
        tightness, ratios = self.tightness, self.improvements
        return {
            "result": self.result,
            "instances": len(self.errors),
            "violations": self.violations,
            "median": float(np.median(tightness)) if tightness.size else None,
            "min": float(tightness.min()) if tightness.size else None,
            "max": float(tightness.max()) if tightness.size else None,
            "largest_gap": max(self.errors) if self.identity else None,
            "improvement": float(np.median(ratios)) if ratios.size else None,
        }

    @property
    def tightness(self) -> Float64[np.ndarray, " k"]:
        """Ratios of error to allowance, wherever the allowance is finite and positive."""
        errors, allowances = np.array(self.errors, dtype=float), np.array(self.allowances, dtype=float)
        usable = (allowances > 0) & np.isfinite(allowances) & np.isfinite(errors)
        return errors[usable] / allowances[usable]

    @property
    def improvements(self) -> Float64[np.ndarray, " k"]:
        """Ratios of older to new allowance on random policies, wherever both are finite and the new one is positive."""
        new, old = np.array(self.allowances, dtype=float), np.array(self.older_allowances, dtype=float)
        usable = (new > 0) & np.isfinite(new) & np.isfinite(old) & (np.array(self.pairs) != "fork")
        return old[usable] / new[usable]


@dataclass(frozen=True)
class Survey:
    """The tally of each result, in the paper's order, and the violations."""

    tallies: dict[str, Tally]
    broken: list[str]
    """A line for each violated claim: which result, on which CMDP and pair, by how much."""

    @property
    def violations(self) -> int:
        """The number of violated claims."""
        return len(self.broken)


def survey(
    cmdps: int, states: int, actions: int, seed: int, progress: Callable[[int], None] = lambda done: None
) -> Survey:
    """Evaluate every result on `cmdps` random CMDPs; CMDP k depends on (seed, k) alone. Calls progress(k)."""
    require_count("cmdps", cmdps, 1)
    require_count("states", states, 2)
    require_count("actions", actions, 2)
    require_count("seed", seed, 0)
    most = 10**8
    require(
        states**2 * actions <= most,
        f"states² · actions must be at most {most:,}, the size of the transition table, got {states} states and {actions} "
        "actions",
    )
    found = Survey({}, [])
    for k in range(cmdps):
        rng = np.random.default_rng([seed, k])
        gamma = 1 - LONGEST_HORIZON ** -rng.uniform()
        cmdp = examples.random_cmdp(rng, states, actions, CONSTRAINTS, gamma)
        for pair, (name, bound, older_bound) in _claims(rng, cmdp):
            found.tallies.setdefault(name, Tally(name)).add(pair, bound, older_bound)
            if not bound.holds:
                found.broken.append(f"{name}: CMDP {k}, {pair} policies, short by {-bound.slack:.3g}")
        progress(k + 1)
    return found


def _claims(rng: np.random.Generator, cmdp: CMDP) -> Iterator[tuple[str, Claim]]:
    old = evaluate(cmdp, examples.random_policy(rng, cmdp))
    for pair, policy in {
        "close": examples.nearby_policy(rng, old.policy, 0.01),
        "near": examples.nearby_policy(rng, old.policy, 0.1),
        "far": examples.random_policy(rng, cmdp),
        "deterministic": examples.random_deterministic_policy(rng, cmdp),
    }.items():
        new = evaluate(cmdp, policy)
        yield from ((pair, claim) for claim in _pair_claims(rng, old, new))
        if pair == "deterministic":
            yield from (("from deterministic", claim) for claim in _pair_claims(rng, new, old))
    yield from (("mixture", claim) for claim in _mixture_claims(rng, old))
    yield from (("fork", claim) for claim in _fork_claims(rng, cmdp.gamma))
    for start in (old, evaluate(cmdp, interior_policy(cmdp))):
        yield from (("update", claim) for claim in _update_claims(rng, start))


def _pair_claims(rng: np.random.Generator, old: Evaluation, new: Evaluation) -> Iterator[Claim]:
    """All results of the paper about an arbitrary pair of policies."""
    f = rng.normal(size=old.cmdp.states) * 10 ** rng.uniform(-1, 1)
    costs = range(1, old.cmdp.constraints + 1)
    yield "Lemma 1: flow, any f", paper.flow_lemma(new, f), None
    yield "Equation 1", paper.performance_difference(old, new), None
    yield "Lemma 2: any f", paper.occupation_lemma(old, new, f), None
    yield "Lemma 3: divergence", paper.divergence_lemma(old, new), older.divergence_lemma_max_tv(old, new)
    yield "Theorem 1: any f", paper.theorem_1(old, new, f), None
    yield "Theorem 1: f = 0", paper.theorem_1(old, new, np.zeros(old.cmdp.states)), None
    schulman, schulman_kl = older.schulman_2015(old, new), older.schulman_2015_kl(old, new)
    yield "Theorem 1: f = V^π", paper.theorem_1(old, new, old.V[0]), schulman
    for signal in range(old.cmdp.constraints + 1):
        yield "Remark: f = V^π'", paper.remark_equality(old, new, signal), None
    yield "Corollary 1", paper.corollary_1(old, new), schulman
    for i in costs:
        yield "Corollary 2", paper.corollary_2(old, new, i), older.schulman_2015(old, new, i)
    yield "Pinsker and Jensen", paper.pinsker_jensen(old, new), None
    yield "Corollary 3: any f", paper.corollary_3_theorem(old, new, f), None
    yield "Corollary 3: reward", paper.corollary_3_reward(old, new), schulman_kl
    for i in costs:
        yield ("Corollary 3: cost", paper.corollary_3_cost(old, new, i), older.schulman_2015_kl(old, new, i))
    yield "(older) Schulman", schulman, None
    yield "(older) Schulman, KL", schulman_kl, None


def _mixture_claims(rng: np.random.Generator, old: Evaluation) -> Iterator[Claim]:
    """Claims about mixtures (1−α)π + απ̂, the only policies that Kakade and Langford's bound covers."""
    goal = evaluate(old.cmdp, examples.random_policy(rng, old.cmdp))
    new = evaluate(old.cmdp, (1 - MIXTURE_SHARE) * old.policy + MIXTURE_SHARE * goal.policy)
    kakade = older.kakade_langford_2002(old, goal, new, MIXTURE_SHARE)
    yield "Corollary 1: mixture", paper.corollary_1(old, new), kakade
    yield "(older) Kakade", kakade, None


def _fork_claims(rng: np.random.Generator, gamma: float) -> Iterator[Claim]:
    """Claims on a CMDP that nearly attains the bounds: with a smaller constant they would fail here."""
    cmdp = examples.fork(gamma)
    old, new = (evaluate(cmdp, policy) for policy in examples.fork_policies(rng.uniform(0.1, 0.5), tremble=1e-4))
    yield from _pair_claims(rng, old, new)


def _update_claims(rng: np.random.Generator, old: Evaluation) -> Iterator[Claim]:
    """Claims about updates: the argmax of (8), of (10) and of the guaranteed update over a finite set that contains π_k.

    The propositions hold for any such set Π_θ. This one has random neighbours of π_k and exponential tilts
    π_k·exp(η(A − Σνᵢ A_Cᵢ)), the form of the exact solutions of (8) and (10) over all policies.
    """
    cmdp, limits = old.cmdp, old.cmdp.limits
    delta = 10 ** rng.uniform(-4, 0)
    policies = _candidates(rng, old)
    promised = promise_of(old, policies)
    inside = promised.kl <= delta
    new = evaluate(cmdp, policies[_argmax(promised.change[:, 0], inside)])
    yield "Proposition 1", paper.proposition_1(old, new, delta), None
    allowed = inside & np.all(old.J_C + promised.change[:, 1:] <= limits, axis=1)
    if allowed.any():
        new = evaluate(cmdp, policies[_argmax(promised.change[:, 0], allowed)])
        for i in range(1, cmdp.constraints + 1):
            yield "Proposition 2", paper.proposition_2(old, new, delta, i), None
    if old.violation <= 0:
        certain = np.all(old.J_C + promised.change[:, 1:] + promised.worst[:, 1:] <= limits, axis=1)
        gains = promised.change[:, 0] - promised.worst[:, 0]
        best = _argmax(gains, certain)
        new = evaluate(cmdp, policies[best])
        yield "Guaranteed: monotone", paper.change_bound(old, new, 0, 0.0, 0.0, "lower"), None
        for i, limit in enumerate(limits):
            size = float(np.abs(old.V[i + 1]).max())
            yield "Guaranteed: feasible", Bound(float(new.J_C[i]), float(limit), 0.0, "upper", size), None


def _candidates(rng: np.random.Generator, old: Evaluation) -> Float64[np.ndarray, "n S A"]:
    tilts = CANDIDATES // 2
    scale = np.abs(old.A).max(axis=(1, 2))
    nu = rng.exponential(size=(tilts, old.cmdp.constraints)) * rng.integers(2, size=(tilts, 1))
    weights = np.hstack([np.ones((tilts, 1)), -nu]) / scale * 10 ** rng.uniform(-2, 1, size=(tilts, 1))
    noise = rng.normal(size=(CANDIDATES - 1 - tilts, *old.policy.shape))
    logits = np.concatenate(
        [
            np.zeros((1, *old.policy.shape)),
            np.einsum("nk,ksa->nsa", weights, old.A),
            noise * 10 ** rng.uniform(-3, 0, size=(len(noise), 1, 1)),
        ]
    )
    policies = old.policy * np.exp(logits)
    return policies / policies.sum(axis=-1, keepdims=True)


def _argmax(values: Float64[np.ndarray, " n"], allowed: np.ndarray) -> int:
    return int(np.argmax(np.where(allowed, values, -np.inf)))
