"""Action distributions of policies: Gaussians for continuous actions, categorical ones for discrete actions.

Several discrete choices at once are independent given the observation: log-probabilities, divergences and entropies add up.
"""

import itertools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from corral.errors import require_shape


class Gaussian(NamedTuple):
    """Parameters of N independent Gaussians with diagonal covariance."""

    mean: Float[Array, "*n a"]
    log_std: Float[Array, "*n a"]

    def metric(self, v: "Gaussian") -> "Gaussian":
        """M v, M the Fisher matrix in (μ, log σ): 1/σ² on the mean, 2 on log σ (KL ≈ ½ Σ (Δμ/σ)² + Σ (Δ log σ)²)."""
        for name, leaf in (("log_std", self.log_std), ("v.mean", v.mean), ("v.log_std", v.log_std)):
            require_shape(name, leaf, self.mean.shape, "as mean")
        return Gaussian(v.mean * jnp.exp(-2 * self.log_std), 2 * v.log_std)


class Categorical(NamedTuple):
    """Parameters of N distributions over k actions."""

    logits: Float[Array, "*n k"]

    def metric(self, v: "Categorical") -> "Categorical":
        """M v, M = diag(p) − ppᵀ the covariance of the one-hot action: the Fisher matrix of a softmax in its logits."""
        require_shape("v.logits", v.logits, self.logits.shape, "as logits")
        p = jax.nn.softmax(self.logits)
        return Categorical(p * v.logits - p * jnp.sum(p * v.logits, axis=-1, keepdims=True))


class Categoricals(eqx.Module):
    """Parameters of N products of independent distributions, the i-th over sizes[i] actions; K = Σ sizes[i]."""

    logits: Float[Array, "*n K"]
    sizes: tuple[int, ...] = eqx.field(static=True)

    def parts(self) -> list[Categorical]:
        """The distributions one by one."""
        ends = list(itertools.accumulate(self.sizes))[:-1]
        return [Categorical(logits) for logits in jnp.split(self.logits, ends, axis=-1)]

    def metric(self, v: "Categoricals") -> "Categoricals":
        """M v: the Fisher matrix of a product is block-diagonal."""
        pairs = zip(self.parts(), v.parts(), strict=True)
        return Categoricals(jnp.concatenate([own.metric(moved).logits for own, moved in pairs], axis=-1), self.sizes)


Distribution = Gaussian | Categorical | Categoricals

_HALF_LOG_2PI = 0.9189385332046727


def noise(z: Distribution, key: Key[Array, ""]) -> Array:
    """The noise that actions are drawn with: normal, or Gumbel for discrete actions."""
    if isinstance(z, Categorical | Categoricals):
        return jax.random.gumbel(key, z.logits.shape, z.logits.dtype)
    return jax.random.normal(key, z.mean.shape, z.mean.dtype)


def act(z: Distribution, noise: Array) -> Array:
    """One action per row from its noise: (n, a) floats, or (n,) integers (the largest of logits + Gumbel noise).

    Several choices at once are (n, places) integers.
    """
    if isinstance(z, Categoricals):
        return mode(Categoricals(z.logits + noise, z.sizes))
    if isinstance(z, Categorical):
        return jnp.argmax(z.logits + noise, axis=-1)
    return z.mean + jnp.exp(z.log_std) * noise


def sample(z: Distribution, key: Key[Array, ""]) -> Array:
    """One action per row: (n, a) floats, or (n,) integers."""
    return act(z, noise(z, key))


def mode(z: Distribution) -> Array:
    """The most likely action of each row."""
    if isinstance(z, Categoricals):
        return jnp.stack([mode(part) for part in z.parts()], axis=-1)
    return jnp.argmax(z.logits, axis=-1) if isinstance(z, Categorical) else z.mean


def log_prob(z: Distribution, action: Array) -> Float[Array, " n"]:
    """log π(a|s), summed over action dimensions."""
    if isinstance(z, Categoricals):
        return sum((log_prob(part, action[:, i]) for i, part in enumerate(z.parts())), start=jnp.zeros(len(action)))
    if isinstance(z, Categorical):
        return jnp.take_along_axis(jax.nn.log_softmax(z.logits), action[:, None], axis=-1)[:, 0]
    e = (action - z.mean) * jnp.exp(-z.log_std)
    return -jnp.sum(e * e / 2 + z.log_std + _HALF_LOG_2PI, axis=-1)


def kl(z: Distribution, old: Distribution) -> Float[Array, " n"]:
    """D(π ‖ π_k) at each state, summed over action dimensions."""
    if isinstance(z, Categoricals) and isinstance(old, Categoricals):
        pairs = zip(z.parts(), old.parts(), strict=True)
        return sum((kl(new, before) for new, before in pairs), start=jnp.zeros(z.logits.shape[:-1]))
    if isinstance(z, Categorical) and isinstance(old, Categorical):
        log_p, log_q = jax.nn.log_softmax(z.logits), jax.nn.log_softmax(old.logits)
        return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)
    assert isinstance(z, Gaussian)
    assert isinstance(old, Gaussian)
    shift = (z.mean - old.mean) * jnp.exp(-old.log_std)
    ratio = jnp.exp(2 * (z.log_std - old.log_std))
    return jnp.sum(old.log_std - z.log_std + (ratio + shift * shift - 1) / 2, axis=-1)


def entropy(z: Distribution) -> Float[Array, " n"]:
    """Entropy of each row, in nats."""
    if isinstance(z, Categoricals):
        return sum((entropy(part) for part in z.parts()), start=jnp.zeros(z.logits.shape[:-1]))
    if isinstance(z, Categorical):
        log_p = jax.nn.log_softmax(z.logits)
        return -jnp.sum(jnp.exp(log_p) * log_p, axis=-1)
    return jnp.sum(z.log_std + _HALF_LOG_2PI + 0.5, axis=-1)
