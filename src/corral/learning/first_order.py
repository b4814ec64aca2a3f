"""The part that all first-order algorithms share: Adam on minibatches of a loss of the policy, for a few passes.

An algorithm says what a minibatch loses (`Rows` shows it to the loss). The steps end early once the policy has moved further
than `target_kl`, as each minibatch sees it: a policy with little noise left moves that far within a few steps. Costs count
per step here, as in the published losses: a price ν weighs the advantage of a cost against the standardised advantage of the
reward, whatever the length of an episode.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from corral.config import Algorithm
from corral.errors import require, require_in
from corral.learning import distributions, minibatches
from corral.learning.surrogates import Local, Step
from corral.trust_region import line_search
from corral.trust_region.dual import Case

_ADAM = optax.scale_by_adam()


class State(NamedTuple):
    """What a first-order algorithm remembers."""

    own: Any
    """Its multipliers, or whatever `init` makes."""
    adam: optax.OptState
    """Adam's moments for the policy."""


class Rows(NamedTuple):
    """A minibatch of k samples at parameters θ, as a loss sees it."""

    weight: Float[Array, " k"]
    """They sum to one."""
    ratio: Float[Array, " k"]
    """π_θ/π_k of the action that was taken."""
    kl: Float[Array, " k"]
    """D(π_θ ‖ reference) at each state; the reference is π_k unless an algorithm names another."""
    advantage: Float[Array, " k"]
    """Of the reward, standardised over the batch."""
    cost_advantage: Float[Array, "k m"]
    """Of each cost, centred, discounted as its return is."""

    def mean(self, x: Float[Array, "k *c"]) -> Float[Array, "*c"]:
        """The mean over the samples."""
        return self.weight @ x

    def clipped(self, advantage: Float[Array, " k"], clip: Any) -> Float[Array, ""]:
        """PPO's objective, the mean of min(ρA, clip(ρ, 1 − ε, 1 + ε)A)."""
        return self.mean(jnp.minimum(self.ratio * advantage, jnp.clip(self.ratio, 1 - clip, 1 + clip) * advantage))

    def priced(self, nu: Float[Array, " m"]) -> Float[Array, " k"]:
        """(A − Σ νᵢAᵢ)/(1 + Σ νᵢ): the sum keeps its scale whatever the prices are."""
        return (self.advantage - self.cost_advantage @ nu) / (1 + jnp.sum(nu))

    def clipped_costs(self, clip: Any) -> Float[Array, " m"]:
        """The change of each cost per step, the mean of max((ρ − 1)Aᵢ, (clip(ρ, 1 − ε, 1 + ε) − 1)Aᵢ), which does not
        underrate it; 0 at π_k, whatever the mean of Aᵢ is in this minibatch."""
        return -jax.vmap(self.clipped, in_axes=(1, None))(-self.cost_advantage, clip) - self.mean(self.cost_advantage)


Loss = Callable[[Rows], Float[Array, ""]]


_Carry = tuple[Float[Array, " p"], optax.OptState, Bool[Array, ""]]
"""θ, Adam's moments, and whether steps go on."""


class Descent(NamedTuple):
    """Where the passes ended."""

    theta: Float[Array, " p"]
    adam: optax.OptState
    passes: Int[Array, ""]


@dataclass(frozen=True)
class FirstOrder(Algorithm):
    """An algorithm that improves the policy by Adam on minibatches.

    The published settings are minibatches of 64 and 40 passes at most.
    """

    learning_rate: float = 3e-4
    """Adam's learning rate."""
    epochs: int = 10
    """Passes over the batch, at most."""
    minibatch: int = 500
    """Samples of a gradient step."""
    target_kl: float = 0.02
    """No further step once the mean KL divergence from the policy that sampled the batch is above this in a minibatch."""
    gradient_norm: float = 1.0
    """Longer gradients are shortened to this length."""

    def check(self) -> None:
        """Refuse numbers that are not positive."""
        super().check()
        for name in ("learning_rate", "target_kl", "gradient_norm"):
            require(getattr(self, name) > 0, f"algo.{name} must be positive, got {getattr(self, name)}")
        for name in ("epochs", "minibatch"):
            require(getattr(self, name) >= 1, f"algo.{name} must be at least 1, got {getattr(self, name)}")

    def start(self, m: int, theta: Float[Array, " p"]) -> State:
        """What `init` makes, and Adam's moments for the policy."""
        return State(self.init(m), _ADAM.init(theta))

    def descend(
        self,
        loss: Loss,
        local: Local,
        adam: optax.OptState | None,
        *,
        theta: Float[Array, " p"] | None = None,
        reach: float = 1.0,
        salt: int = 0,
    ) -> Descent:
        """Passes of Adam on a loss of the policy, from θ on; without θ, from the current policy.

        `adam` holds Adam's moments; None: it begins anew, as another loss needs it.

        `Rows.kl`, which ends the steps at `reach` times `target_kl`, is measured from the policy of θ. A second descent in
        one update needs another salt: it draws its minibatches anew.
        """
        assert local.key is not None, "minibatches need a key"
        key = jax.random.fold_in(local.key, salt)
        theta = local.flat.theta if theta is None else theta
        adam = _ADAM.init(theta) if adam is None else adam
        rows, read = local.samples.weight > 0, _reader(local, theta)

        def seen(theta: Float[Array, " p"], some: Int[Array, " k"], counts: Bool[Array, " k"]) -> tuple[Array, Array]:
            minibatch = read(theta, some, counts)
            return loss(minibatch), minibatch.mean(minibatch.kl)

        def step(carry: _Carry, some: Int[Array, " k"], counts: Bool[Array, " k"]) -> _Carry:
            theta, adam, going = carry
            gradient, divergence = jax.grad(seen, has_aux=True)(theta, some, counts)
            going = going & (divergence <= reach * self.target_kl)  # a divergence that is NaN ends the steps, too
            length = jnp.linalg.norm(gradient)
            shorter = jnp.minimum(1, self.gradient_norm / jnp.where(length > 0, length, 1))
            direction, moments = _ADAM.update(shorter * gradient, adam)
            moved = theta - self.learning_rate * direction, moments
            theta, adam = jax.tree.map(lambda new, old: jnp.where(going, new, old), moved, (theta, adam))
            return theta, adam, going

        def one_pass(made: tuple[_Carry, Array]) -> tuple[_Carry, Array]:
            carry, passes = made
            chance: Key[Array, ""] = jax.random.fold_in(key, passes)
            return minibatches.one_pass(rows, self.minibatch, chance, step, carry), passes + 1

        begin = (theta, adam, jnp.ones((), bool)), jnp.zeros((), jnp.int32)
        going_on = lambda made: made[0][2] & (made[1] < self.epochs)  # noqa: E731
        (theta, adam, _), passes = lax.while_loop(going_on, one_pass, begin)
        return Descent(theta, adam, passes)


@dataclass(frozen=True)
class Clipped(FirstOrder):
    """A first-order algorithm on PPO's clipped objective."""

    clip: float = 0.2
    """ε: no gain from ratios π_θ/π_k outside [1 − ε, 1 + ε]."""

    def check(self) -> None:
        """Refuse a range that holds no ratios, or negative ones."""
        super().check()
        require_in("algo.clip", self.clip, 0, 1, closed="(]")


def _reader(
    local: Local, theta: Float[Array, " p"]
) -> Callable[[Float[Array, " p"], Int[Array, " k"], Bool[Array, " k"]], Rows]:
    """The function from parameters and indices to `Rows`."""
    s = local.samples
    reference = local.flat.policy(theta)(s.obs)
    # γ_C^t relative to its mean: the mean of what follows over the batch is the change of a cost per step.
    share = s.cost_weight / jnp.where(local.steps > 0, local.steps, 1)
    cost_advantage = jnp.where(s.weight[:, None] > 0, share / jnp.max(s.weight) * s.cost_advantage, 0)

    def read(theta: Float[Array, " p"], some: Int[Array, " k"], counts: Bool[Array, " k"]) -> Rows:
        z = local.flat.policy(theta)(s.obs[some])
        ratio = jnp.exp(distributions.log_prob(z, s.action[some]) - local.old_log_prob[some])
        kl = distributions.kl(z, jax.tree.map(lambda leaf: leaf[some], reference))
        return Rows(counts / jnp.sum(counts), ratio, kl, s.advantage[some], cost_advantage[some])

    return read


def finish(
    state: State, own: Any, local: Local, found: Descent, limit: Float[Array, " m"], nu: Float[Array, " m"]
) -> tuple[State, Step]:
    """The new memory and the record of an update; the policy and Adam stay as they were where a number is not finite."""
    change, kl = local.surrogates(found.theta), local.kl(found.theta)
    values = jnp.concatenate([kl[None], -change[:1], change[1:]])
    fine = jnp.all(jnp.isfinite(found.theta)) & jnp.all(jnp.isfinite(values))
    theta = jnp.where(fine, found.theta, local.flat.theta)
    adam = jax.tree.map(lambda new, old: jnp.where(fine, new, old), found.adam, state.adam)
    none = jnp.zeros(values.shape, jnp.int32)
    search = line_search.LineSearch(
        theta=theta,
        accepted=fine,
        scale=fine.astype(theta.dtype),
        tried=found.passes,
        failed=none,
        not_finite=(~fine).astype(jnp.int32),
        checks=line_search.Checks(values, jnp.full(values.shape, jnp.inf)),
    )
    step = Step(
        theta=theta,
        promised=jnp.where(fine, change[1:], 0),
        kl=jnp.where(fine, kl, 0),
        case=jnp.asarray(Case.INSIDE, jnp.int32),
        lam=jnp.zeros(()),
        nu=nu,
        effective_limit=limit,
        cg_residual=jnp.zeros(()),
        search=search,
    )
    return State(own, adam), step
