"""A policy file as a function from observations to actions, in NumPy or in Python alone.

The file says everything that acting needs (`meta["policy"]`): how an observation is laid out, the final mean and
deviation of each of its numbers and where they are clipped, the layers and their activation, the distribution of
actions and how they are mapped onto what the environment takes.

    unit = clip((obs − mean) / deviation, ±clip)            hidden = f(unit W + b) …, the last layer without f
    box: action = map(output + σ · noise), noise ~ N(0, 1)  discrete: start + argmax(output + noise), noise ~ Gumbel
    several choices at once: the same, each from its own part of the output
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

from corral.errors import CorralError, require, require_finite
from corral.policy import plain
from corral.policy.members import Numbers, numbers

FORMAT = 1
"""The version of `meta["policy"]` that this module reads and that files are written in."""

_NO_ACTION = "the policy has no action for this observation: it holds, or leads to, NaN or infinity"


class Policy:
    """A trained policy. Calling it gives actions as the environment's `step` takes them.

    It is loaded without NumPy, which the first call imports; `act` does without.
    """

    def __init__(self, about: Mapping[str, Any], sha256: str, arrays: Mapping[str, Numbers]) -> None:
        self.about = about
        """What the file says of it: environment, observation, action, constraints with their limits, versions."""
        self.sha256 = sha256
        """Of the whole file, as `sha256sum` prints it; certificates name a policy by it."""
        self._arrays = arrays

    @cached_property
    def weights(self) -> tuple[Any, ...]:
        """The weights of each layer, NumPy arrays (inputs, outputs)."""
        return tuple(self._array(layer["weight"]) for layer in self.about["network"]["layers"])

    @cached_property
    def biases(self) -> tuple[Any, ...]:
        """The biases of each layer, NumPy arrays (outputs,)."""
        return tuple(self._array(layer["bias"]) for layer in self.about["network"]["layers"])

    @cached_property
    def mean(self) -> Any:
        """(o,) what observations are centred by; None: they are taken as they are."""
        return self._array(self.about["normalizer"]["mean"]) if self.about["normalizer"] else None

    @cached_property
    def deviation(self) -> Any:
        """(o,) what they are divided by."""
        return self._array(self.about["normalizer"]["deviation"]) if self.about["normalizer"] else None

    @cached_property
    def sigma(self) -> Any:
        """(a,) deviations of the actions; None for choices."""
        return self._array(self.about["action"]["deviation"]) if self.choices is None else None

    def _array(self, name: str) -> Any:
        import numpy as np

        kind, shape, data = self._arrays[name]
        return np.frombuffer(data, np.dtype(kind)).reshape(shape).copy()

    @property
    def observation_size(self) -> int:
        """How many numbers an observation has."""
        return int(self.about["observation"]["size"])

    @property
    def choices(self) -> tuple[int, ...] | None:
        """Among how many an action chooses in each of its places, which is one or several; None: it is continuous."""
        how = self.about["action"]
        if how["kind"] == "box":
            return None
        return (int(how["size"]),) if how["kind"] == "discrete" else tuple(int(size) for size in how["sizes"])

    @property
    def output_size(self) -> int:
        """How many numbers the network puts out, and as many of noise an action takes."""
        return int(self.about["action"]["size"]) if self.choices is None else sum(self.choices)

    def act(self, obs: Sequence[float]) -> list[float] | list[int] | int:
        """The most likely action for one observation (o,), in Python alone: a list of numbers, one for each place.

        Where an action is a single choice, it is the number of that.

        The first action after a program's start comes sooner so, as NumPy takes longer to import than a policy to load;
        of many, and of several observations at once, those of a call are faster. The last digits differ.
        """
        size = self.observation_size
        require(len(obs) == size, f"obs must hold {size} numbers, got {len(obs)}")
        x = [float(number) for number in obs]
        require(all(map(math.isfinite, x)), _NO_ACTION)
        means, deviations, layers = self._plain
        if means is not None:
            clip = self.about["normalizer"]["clip"]
            scaled = zip(x, means, deviations, strict=True)
            x = [plain.clipped((number - mean) / deviation, -clip, clip) for number, mean, deviation in scaled]
        made = plain.output(x, layers, self.about["network"]["activation"])
        require(all(map(math.isfinite, made)), _NO_ACTION)
        how = self.about["action"]
        if how["kind"] == "discrete":
            return int(made.index(max(made)) + how["start"])
        if self.choices is not None:
            ends = list(accumulate(self.choices))
            parts = [made[end - size : end] for size, end in zip(self.choices, ends, strict=True)]
            starts = how["start"] or [0] * len(parts)
            return [int(part.index(max(part)) + start) for part, start in zip(parts, starts, strict=True)]
        if how["low"] is None:
            return made
        bounds = zip(*self._bounds, strict=True)
        return [plain.outside(number, low, high) for number, (low, high) in zip(made, bounds, strict=True)]

    @cached_property
    def _plain(self) -> tuple[Any, Any, list[plain.Layer]]:
        """Means and deviations of observations, or None, and the layers, as `plain` takes them."""
        scale, layers = self.about["normalizer"], self.about["network"]["layers"]
        ends = [plain.floats(self._arrays[scale[name]]) if scale else None for name in ("mean", "deviation")]
        made = [plain.layer(self._arrays[layer["weight"]], self._arrays[layer["bias"]]) for layer in layers]
        return ends[0], ends[1], made

    def __call__(self, obs: Any, *, deterministic: bool = True, random: Any = None, noise: Any = None) -> Any:
        """Actions for one observation (o,) or several (n, o): the most likely ones, or drawn.

        Draws come from `random`, a generator of NumPy's, or else from the system's chance. `noise` takes their place:
        (`output_size`,) or (n, `output_size`) of N(0, 1) for a box, of Gumbel for choices. CorralError where an
        observation has no action.
        """
        import numpy as np

        with np.errstate(over="ignore"):  # what is too large for single precision is infinite, and refused
            obs = np.asarray(obs, np.float32)
        size = self.observation_size
        fits = obs.ndim in (1, 2) and obs.shape[-1] == size
        require(fits, f"obs must have shape ({size},) or (n, {size}), got {obs.shape}")
        require(bool(np.isfinite(obs).all()), _NO_ACTION)
        output = self.output(obs)
        require(bool(np.isfinite(output).all()), _NO_ACTION)
        if noise is None and not deterministic:
            random = np.random.default_rng() if random is None else random
            noise = random.standard_normal(output.shape) if self.choices is None else random.gumbel(size=output.shape)
        chance = None if noise is None else np.asarray(noise, np.float32)
        if chance is not None:
            require(chance.shape == output.shape, f"noise must have shape {output.shape}, got {chance.shape}")
            require_finite("noise", chance)
        if self.choices is None:
            return self._outside(output if chance is None else output + self.sigma * chance)
        return self._chosen(output if chance is None else output + chance)

    def _chosen(self, output: Any) -> Any:
        """The largest of each part of the output, as the environment counts them."""
        import numpy as np

        from corral.policy import acting

        how = self.about["action"]
        assert self.choices is not None
        if how["kind"] == "discrete":
            return np.asarray(np.argmax(output, axis=-1) + int(how["start"]))
        parts = np.split(output, np.cumsum(self.choices)[:-1], axis=-1)
        chosen = np.stack([np.argmax(part, axis=-1) for part in parts], axis=-1)
        return acting.outside(chosen, start=how["start"] or 0, shape=how["shape"])

    def output(self, obs: Any) -> Any:
        """The network's output: the mean of the Gaussian (…, a), or the logits of the choices (…, k)."""
        import numpy as np

        from corral.policy import acting

        x = obs
        if self.mean is not None and self.deviation is not None:
            clip = np.float32(self.about["normalizer"]["clip"])
            x = acting.clipped((x - self.mean) / self.deviation, -clip, clip)
        return acting.layers(x, self.weights, self.biases, self.about["network"]["activation"])

    @property
    def _bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """What the environment takes at least and at most of each number of an action; infinite where nothing is said."""
        how, size = self.about["action"], int(self.about["action"]["size"])
        low, high = (how[end] if how[end] is not None else [None] * size for end in ("low", "high"))
        missing = ((low, -math.inf), (high, math.inf))
        lowest, highest = (tuple(nothing if x is None else float(x) for x in ends) for ends, nothing in missing)
        return lowest, highest

    def bounds(self) -> tuple[Any, Any]:
        """(a,) and (a,): what the environment takes at least and at most; infinite where nothing is said."""
        import numpy as np

        low, high = self._bounds
        return np.asarray(low, np.float32), np.asarray(high, np.float32)

    def _outside(self, actions: Any) -> Any:
        """Numbers with two bounds are mapped from [-1, 1] onto them and clipped, others clipped to a bound, if any."""
        from corral.policy import acting

        how = self.about["action"]
        low, high = self._bounds if how["low"] is not None else (None, None)
        return acting.outside(actions, low, high, shape=how["shape"])


def load(path: str | os.PathLike[str]) -> Policy:
    """The policy in a policy file, verified: `policy.npz` of a run, or what `Result.save` wrote."""
    with open(path, "rb") as file:
        data = file.read()
    arrays, meta = _content(data, str(path))
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
    kind = about["action"]["kind"]
    require(kind in ("box", "discrete", "multi_discrete"), f"{path} has actions of a kind unknown here: {kind}")
    return Policy(about, hashlib.sha256(data).hexdigest(), arrays)


def _content(data: bytes, path: str) -> tuple[Mapping[str, Numbers], Mapping[str, Any]]:
    """The arrays and the meta of a file: read here where it is laid out as we write it, by `archive` where it is not."""
    found = numbers(data)
    if found is not None and "meta" in found:
        try:
            meta = json.loads(found.pop("meta").data)
        except (ValueError, RecursionError):
            meta = None
        if isinstance(meta, dict):
            return found, meta
    from corral.policy import archive

    arrays, meta = archive.parse(data, path)
    return {name: Numbers(x.dtype.str, x.shape, x.tobytes()) for name, x in arrays.items()}, meta
