"""Networks and policies: Equinox modules, which are pytrees of their parameters."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key

from corral.config import Networks
from corral.envs.contract import Box, EnvSpec, MultiDiscrete
from corral.envs.gymnasium import spaces
from corral.errors import CorralError, require
from corral.learning.distributions import Categorical, Categoricals, Distribution, Gaussian

_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "elu": jax.nn.elu,
    "silu": jax.nn.silu,
}


class MLP(eqx.Module):
    """Fully connected layers on the last axis: Glorot-uniform weights, biases zero."""

    weights: list[Float[Array, "i o"]]
    biases: list[Float[Array, " o"]]
    activation: str = eqx.field(static=True)

    def __init__(self, sizes: tuple[int, ...], activation: str, key: Key[Array, ""]):
        keys = jax.random.split(key, len(sizes) - 1)
        glorot = jax.nn.initializers.glorot_uniform()
        self.weights = [glorot(k, shape) for k, shape in zip(keys, pairwise(sizes), strict=True)]
        self.biases = [jnp.zeros(n) for n in sizes[1:]]
        self.activation = activation

    def __call__(self, x: Float[Array, "*n i"]) -> Float[Array, "*n o"]:
        """The output layer is linear."""
        f = _ACTIVATIONS[self.activation]
        for W, b in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = f(product(x, W) + b)
        return product(x, self.weights[-1]) + self.biases[-1]


class Scale(NamedTuple):
    """Mean and deviation of inputs or targets, by column."""

    mean: Float[Array, " c"]
    std: Float[Array, " c"]

    def unit(self, x: Float[Array, "n c"]) -> Float[Array, "n c"]:
        """Centred and scaled."""
        return (x - self.mean) / self.std


def with_input_scale(net: MLP, before: Scale, after: Scale) -> MLP:
    """The network that makes of inputs in the scale `after` what `net` makes of the same inputs in the scale `before`.

    (x − m₀)/s₀ = (x − m₁)/s₁ · s₁/s₀ + (m₁ − m₀)/s₀, so only the first layer changes. Networks may be stacked.
    """
    W = net.weights[0]
    weight, bias = W * (after.std / before.std)[:, None], net.biases[0] + ((after.mean - before.mean) / before.std) @ W
    moved: MLP = eqx.tree_at(lambda n: (n.weights[0], n.biases[0]), net, (weight, bias))
    return moved


# The least number of rows in a piece. It is faster for a single run than 1,000 or 2,000, and as fast for many.
_PIECE = 500


def product(x: Float[Array, "*n i"], W: Float[Array | np.ndarray, "i o"]) -> Float[Array, "*n o"]:
    """x W. A GPU multiplies many rows in pieces, so that all its processors share the gradient of W, a sum over rows.

    cuBLAS does not cut such sums in a batch of products, one for each network: a single processor would do each.
    """
    count = pieces(len(x), jax.device_count()) if x.ndim == 2 and jax.default_backend() == "gpu" else 1
    return x @ W if count == 1 else in_pieces(x, W, count)


def pieces(rows: int, devices: int) -> int:
    """The number of equal pieces to cut rows into: as many for each device, none shorter than `_PIECE`."""
    own, rest = divmod(rows, devices)
    each = max((k for k in range(1, own // _PIECE + 1) if own % k == 0), default=1)
    return 1 if rest or each == 1 else devices * each


def in_pieces(x: Float[Array, "n i"], W: Float[Array | np.ndarray, "i o"], count: int) -> Float[Array, "n o"]:
    """x W with a copy of W for each of `count` pieces of x: their gradients are computed one by one, then added."""
    # XLA would be free to make one product of them again; the barrier forbids it.
    copies = lax.optimization_barrier(jnp.broadcast_to(W, (count, *W.shape)))
    return (x.reshape(count, len(x) // count, x.shape[1]) @ copies).reshape(len(x), W.shape[1])


CLIP = 10.0
"""Scaled observations are clipped to ± this many deviations."""
DEAD_BAND = 1e-6
"""An input whose deviation is a smaller share of its mean never changes: its deviation is a rounding error."""


class Normalizer(eqx.Module):
    """Running mean and variance of observations, in Welford's form."""

    mean: Float[Array, " o"]
    spread: Float[Array, " o"]
    """Sum of squared deviations."""
    count: Float[Array, ""]
    least: float = eqx.field(static=True, default=0.0)
    """Inputs that vary by less are divided by this instead of their deviation."""

    def __call__(self, obs: Float[Array, "*n o"]) -> Float[Array, "*n o"]:
        """Centre and scale, clipped to ± `CLIP` deviations; before any data, no change."""
        scale = self.scale()
        return jnp.clip((obs - scale.mean) / scale.std, -CLIP, CLIP)

    def scale(self) -> Scale:
        """The mean and the deviation to scale by."""
        deviation = jnp.sqrt(self.spread / jnp.maximum(self.count, 1))
        varies = deviation > DEAD_BAND * jnp.abs(self.mean)
        return Scale(self.mean, jnp.where(varies, jnp.maximum(deviation, self.least), 1))

    def updated(self, obs: Float[Array, "n o"], weight: Float[Array, " n"]) -> "Normalizer":
        """With a batch added (rows of weight 0 do not count)."""
        n = jnp.sum(weight)
        # Relative to one row: the mean of an input that never changes is then exact.
        one = obs[jnp.argmax(weight)]
        mean = one + weight @ (obs - one) / jnp.maximum(n, 1)
        spread = weight @ (obs - mean) ** 2
        total = self.count + n
        shift = mean - self.mean
        return Normalizer(
            self.mean + shift * n / jnp.maximum(total, 1),
            self.spread + spread + shift**2 * self.count * n / jnp.maximum(total, 1),
            total,
            self.least,
        )


class Policy(eqx.Module):
    """π(a|s): a network gives a Gaussian's mean (its log-deviation does not depend on the state) or logits."""

    net: Callable[[Array], Array]
    """Any module from observations (n, o) to (n, actions)."""
    log_std: Float[Array, " a"] | None
    """None for discrete actions."""
    normalizer: Normalizer | None
    sizes: tuple[int, ...] | None = eqx.field(static=True, default=None)
    """The number of actions of each of several choices made at once; None: there is but one."""

    def __call__(self, obs: Float[Array, "n o"]) -> Distribution:
        """Distribution parameters for a batch of observations."""
        out = self.net(obs if self.normalizer is None else jax.lax.stop_gradient(self.normalizer)(obs))
        if self.sizes is not None:
            return Categoricals(out, self.sizes)
        if self.log_std is None:
            return Categorical(out)
        return Gaussian(out, jnp.broadcast_to(self.log_std, out.shape))

    def seeing(self, normalizer: Normalizer) -> "Policy":
        """The same policy with other statistics of observations.

        Corral's own networks stay the same functions, up to the clipping of observations: a policy that changed with the
        statistics would leave the trust region. A user's network sees the new scale.
        """
        net = self.net
        if isinstance(net, MLP) and self.normalizer is not None:
            net = with_input_scale(net, self.normalizer.scale(), normalizer.scale())
        return replace(self, net=net, normalizer=normalizer)


class Adopted(eqx.Module):
    """A user's network. Its arrays are part of the policy; everything else in it, such as functions, of the program."""

    arrays: Any
    rest: Any = eqx.field(static=True)
    by_row: bool = eqx.field(static=True)
    shape: tuple[int, ...] | None = eqx.field(static=True, default=None)
    """The shape of one observation as the network takes it; None: flat."""

    def __call__(self, x: Float[Array, "n i"]) -> Float[Array, "n o"]:
        """As the user's network, on rows."""
        net: Any = eqx.combine(self.arrays, self.rest)
        shaped = x if self.shape is None else x.reshape(len(x), *self.shape)
        return jax.vmap(net)(shaped) if self.by_row else net(shaped)


def adopt(net: Any, inputs: int, outputs: int, shape: tuple[int, ...] | None = None) -> Any:
    """The user's network as a module from rows to rows, made of arrays; one that takes a single row is vmapped.

    `shape` is that of an observation before it was flattened, such as an image's: the network may take it so as well.
    """
    require(callable(net), f"net must be an Equinox module that can be called, got {type(net).__name__}")
    arrays, rest = eqx.partition(net, eqx.is_array)
    # A number of rows that is none of the network's sizes.
    many = 2 + inputs + outputs
    rows, found = jax.ShapeDtypeStruct((many, inputs), jnp.float32), []
    forms = [(form, by_row) for form in ((None,) if shape is None else (None, shape)) for by_row in (False, True)]
    for form, by_row in forms:
        adopted = Adopted(arrays, rest, by_row, form)
        try:
            made = getattr(eqx.filter_eval_shape(adopted, rows), "shape", "no array")
        except (AssertionError, TypeError, ValueError) as error:
            found.append(f"({(str(error).splitlines() or [type(error).__name__])[0][:80]})")
            continue
        if made == (many, outputs):
            return adopted if by_row or form or jax.tree.leaves(rest) else net
        found.append(str(made))
    also = "" if shape is None else f"; of those in the shape {shape} {found[2]} and {found[3]}"
    raise CorralError(
        f"net must map observations (n, {inputs}) to (n, {outputs}), or one ({inputs},) to ({outputs},)"
        f"{f', or one {shape} to ({outputs},)' if shape else ''}: "
        f"of {many} observations it made {found[0]}, of one at a time {found[1]}{also}"
    )


def make_policy(spec: EnvSpec, networks: Networks, key: Key[Array, ""], net: Any | None = None) -> Policy:
    """A fresh policy for an environment; `net` replaces the default network."""
    o, k = spec.observation_size, spec.action.size
    if net is None:
        mlp = MLP((o, *networks.hidden, k), networks.activation, key)
        # A small last layer makes the first policies nearly pure noise, so that exploration starts evenly.
        net = eqx.tree_at(lambda n: n.weights[-1], mlp, 0.1 * mlp.weights[-1])
    else:
        space = spec.observation and spaces.from_text(spec.observation)
        net = adopt(net, o, k, space.shape if isinstance(space, gymnasium.spaces.Box) else None)
    blank = Normalizer(jnp.zeros(o), jnp.zeros(o), jnp.zeros(()), networks.least_deviation)
    normalizer = blank if networks.normalize_observations else None
    log_std = jnp.full(k, networks.log_std, jnp.float32) if isinstance(spec.action, Box) else None
    sizes = spec.action.sizes if isinstance(spec.action, MultiDiscrete) else None
    return Policy(net, log_std, normalizer, sizes)


class Flat(NamedTuple):
    """A policy as a vector θ of what is trained, and the way back."""

    theta: Float[Array, " p"]
    policy: Callable[[Float[Array, " p"]], Policy]
    deviations: Float[Array, " p"]
    """1 for the log deviations of a Gaussian, 0 for the network's parameters."""


def flatten(policy: Policy) -> Flat:
    """θ: network and log-deviation; the normaliser's statistics are carried along, not trained."""
    trained = eqx.tree_at(lambda p: p.normalizer, policy, None, is_leaf=lambda x: x is None)
    arrays, static = eqx.partition(trained, eqx.is_inexact_array)
    theta, unravel = ravel_pytree(arrays)

    def back(theta: Float[Array, " p"]) -> Policy:
        rebuilt: Policy = eqx.combine(unravel(theta), static)
        return replace(rebuilt, normalizer=policy.normalizer)

    which = jax.tree.map(jnp.zeros_like, arrays)
    if policy.log_std is not None:
        which = replace(which, log_std=jnp.ones_like(policy.log_std))
    return Flat(theta, back, ravel_pytree(which)[0])


def stack_mlps(count: int, sizes: tuple[int, ...], activation: str, key: Key[Array, ""]) -> MLP:
    """`count` networks of the same shape as one module whose arrays have a leading axis."""
    return eqx.filter_vmap(lambda k: MLP(sizes, activation, k))(jax.random.split(key, count))


def apply_stacked(nets: MLP, x: Float[Array, "n i"]) -> Float[Array, "n c"]:
    """The first output of each of c stacked networks, for every row of x."""
    return eqx.filter_vmap(lambda net: net(x)[..., 0], out_axes=-1)(nets)
