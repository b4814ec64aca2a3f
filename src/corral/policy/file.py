"""A policy file as a function from observations to actions, in NumPy.

The file says everything that acting needs (`meta["policy"]`): how an observation is laid out, the final mean and
deviation of each of its numbers and where they are clipped, the layers and their activation, the distribution of
actions and how they are mapped onto what the environment takes.

    unit = clip((obs − mean) / deviation, ±clip)            hidden = f(unit W + b) …, the last layer without f
    box: action = map(output + σ · noise), noise ~ N(0, 1)  discrete: start + argmax(output + noise), noise ~ Gumbel
"""

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from corral.errors import CorralError, require
from corral.policy import acting, archive

FORMAT = 1
"""The version of `meta["policy"]` that this module reads and that files are written in."""


class Policy(NamedTuple):
    """A trained policy. Calling it gives actions as the environment's `step` takes them."""

    about: Mapping[str, Any]
    """What the file says of it: environment, observation, action, constraints with their limits, versions."""
    sha256: str
    """Of the whole file, as `sha256sum` prints it; certificates name a policy by it."""
    weights: tuple[np.ndarray, ...]
    biases: tuple[np.ndarray, ...]
    mean: np.ndarray | None
    """(o,) what observations are centred by; None: they are taken as they are."""
    deviation: np.ndarray | None
    """(o,) what they are divided by."""
    sigma: np.ndarray | None
    """(a,) deviations of the actions; None for discrete ones."""

    @property
    def observation_size(self) -> int:
        """How many numbers an observation has."""
        return int(self.about["observation"]["size"])

    @property
    def discrete(self) -> bool:
        """Whether an action is one of a number of choices."""
        return self.sigma is None

    def __call__(
        self, obs: Any, *, deterministic: bool = True, random: "np.random.Generator | None" = None, noise: Any = None
    ) -> np.ndarray:
        """Actions for one observation (o,) or several (n, o): the most likely ones, or drawn.

        Draws come from `random`, or else from the system's chance. `noise` takes their place: (actions,) or (n,
        actions) of N(0, 1) for a box, of Gumbel for discrete actions.
        """
        obs = np.asarray(obs, np.float32)
        size = self.observation_size
        fits = obs.ndim in (1, 2) and obs.shape[-1] == size
        require(fits, f"obs must have shape ({size},) or (n, {size}), got {obs.shape}")
        output = self.output(obs)
        if noise is None and not deterministic:
            random = np.random.default_rng() if random is None else random
            noise = random.gumbel(size=output.shape) if self.discrete else random.standard_normal(output.shape)
        chance = None if noise is None else np.asarray(noise, np.float32)
        if chance is not None:
            require(chance.shape == output.shape, f"noise must have shape {output.shape}, got {chance.shape}")
        if self.sigma is None:
            chosen = np.argmax(output if chance is None else output + chance, axis=-1)
            return np.asarray(chosen + int(self.about["action"]["start"]))
        return self._outside(output if chance is None else output + self.sigma * chance)

    def output(self, obs: np.ndarray) -> np.ndarray:
        """The network's output: the mean of the Gaussian (…, a), or the logits of the choices (…, k)."""
        x = obs
        if self.mean is not None and self.deviation is not None:
            clip = np.float32(self.about["normalizer"]["clip"])
            x = acting.clipped((x - self.mean) / self.deviation, -clip, clip)
        return acting.layers(x, self.weights, self.biases, self.about["network"]["activation"])

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """(a,) what the environment takes at least and at most of each number of an action; infinite where nothing is
        said."""
        how, size = self.about["action"], int(self.about["action"]["size"])
        low, high = (how[end] if how[end] is not None else [None] * size for end in ("low", "high"))
        return _bounds(low, -math.inf), _bounds(high, math.inf)

    def _outside(self, actions: np.ndarray) -> np.ndarray:
        """Numbers with two bounds are mapped from [-1, 1] onto them and clipped, others clipped to a bound, if any."""
        how, (low, high) = self.about["action"], self.bounds()
        ends = None if how["low"] is None else (tuple(low.tolist()), tuple(high.tolist()))
        return acting.outside(actions, ends and ends[0], ends and ends[1], shape=how["shape"])


def _bounds(numbers: Sequence[float | None], missing: float) -> np.ndarray:
    return np.asarray([missing if x is None else x for x in numbers], np.float32)


def load(path: str | os.PathLike[str]) -> Policy:
    """The policy in a policy file, verified: `policy.npz` of a run, or what `Result.save` wrote."""
    with open(path, "rb") as file:
        data = file.read()
    arrays, meta = archive.parse(data, str(path))
    about = meta.get("policy")
    if about is None:
        raise CorralError(
            f"{path} does not say how its arrays make a policy: it was written by an earlier version of Corral, or is no "
            f"policy. `corral export RUN FILE.npz` writes one that does"
        )
    require(
        about["format"] <= FORMAT, f"{path} has format {about['format']}, which this version of Corral does not know"
    )
    network = about["network"]
    require(
        network["kind"] == "mlp",
        f"{path} holds a network of your own, {network.get('name')}, whose code is not in the file: load it with "
        "corral.Result.load(path, net), which needs JAX",
    )
    scale, action = about["normalizer"], about["action"]
    require(
        action["kind"] in ("box", "discrete"),
        f"{path} has several choices at once as actions: load it with corral.Result.load(path), which needs JAX",
    )
    return Policy(
        about,
        hashlib.sha256(data).hexdigest(),
        tuple(arrays[layer["weight"]] for layer in network["layers"]),
        tuple(arrays[layer["bias"]] for layer in network["layers"]),
        arrays[scale["mean"]] if scale else None,
        arrays[scale["deviation"]] if scale else None,
        arrays[action["deviation"]] if action["kind"] == "box" else None,
    )
