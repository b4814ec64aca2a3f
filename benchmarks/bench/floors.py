"""Measure the floor: matrix products at the rate of a plain matmul of their shapes, and bytes once through memory.

A network with layers i → o, applied to n rows, consists of products of three shapes, 2·n·i·o flops each:

    forward   (n × i)(i × o)    outputs of a layer, and their tangents
    weights   (i × n)(n × o)    gradient of its weights
    inputs    (n × o)(o × i)    gradient of its inputs

Each can be computed with the small matrix in either memory layout, which matters severalfold; the faster one counts.
For k tangents or cotangents at once, products with a common factor merge into one of k times the width: x·[dW₁ … dW_k].
"""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle, islice, pairwise
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from corral import devices

Sizes = tuple[int, ...]
"""The widths of a network's layers, inputs and outputs included."""


class Product(NamedTuple):
    """One matrix product of a layer i → o on so many rows."""

    kind: Literal["forward", "weights", "inputs"]
    rows: int
    i: int
    o: int

    @property
    def flops(self) -> int:
        """The flops of the product: one multiplication and one addition for each of rows·i·o."""
        return 2 * self.rows * self.i * self.o


Work = dict[Product, float]
"""How often each product is made."""


def _count(products: Iterable[Product]) -> Work:
    return {product: float(count) for product, count in Counter(products).items()}


def times(factor: float | int, work: Work) -> Work:
    """Return the work done `factor` times."""
    return {product: factor * count for product, count in work.items()} if factor else {}


def total(parts: Iterable[Work]) -> Work:
    """Return the sum of several works."""
    work: Work = {}
    for part in parts:
        for product, count in part.items():
            work[product] = work.get(product, 0) + count
    return work


def forward(sizes: Sizes, rows: int) -> Work:
    """Return the work of a network's outputs: one product per layer."""
    return _count(Product("forward", rows, i, o) for i, o in pairwise(sizes))


def backward(sizes: Sizes, rows: int, columns: int = 1) -> Work:
    """Return the work of the weights' gradients, given the activations: two products per layer, but one in the first.

    The update does not need the gradient of the observations.
    """
    layers = list(pairwise(sizes))
    weights = [Product("weights", rows, i, columns * o) for i, o in layers]
    return _count(weights + [Product("inputs", columns * rows, i, o) for i, o in layers[1:]])


def tangent(sizes: Sizes, rows: int, columns: int = 1) -> Work:
    """Return the work of JV, given the activations: x·dW for every layer, dx·W for all but the first, where dx = 0."""
    layers = list(pairwise(sizes))
    own = [Product("forward", rows, i, columns * o) for i, o in layers]
    return _count(own + [Product("forward", columns * rows, i, o) for i, o in layers[1:]])


def fisher(sizes: Sizes, rows: int, columns: int = 1) -> Work:
    """Return the work of HV = JᵀMJV with diagonal M: one pass forward with tangents, one back."""
    return total([tangent(sizes, rows, columns), backward(sizes, rows, columns)])


def flops(work: Work) -> float:
    """Return the flops of all products together."""
    return float(sum(count * product.flops for product, count in work.items()))


# So many flops make a call last long against its dispatch: some milliseconds on a core, half a millisecond on a GPU.
_FLOPS = {"cpu": 3e8, "gpu": 2e10}
_MOST_BYTES = {"cpu": 2**30, "gpu": 2**32}
_MOST_REPEATS = {"cpu": 16, "gpu": 128}
# A GPU starts a product every few microseconds, but Python needs a fifth of a millisecond to hand over 128 of them: it hands
# over the next calls while the GPU computes one.
_CALLS = {"cpu": 1, "gpu": 8}
# Bytes of the factors of a call, copies of one matrix at different addresses: more than any cache holds.
_MOST_FACTORS = 2**28
# Products of more rows are measured on this many and scaled: the rate no longer changes, and memory would run out.
_MOST_ROWS = 2**20


class Plain(NamedTuple):
    """One matrix product, jitted alone: a call for each memory layout of the small matrix."""

    calls: dict[str, Callable[[], Any]]
    repeats: float
    """How many products a call makes."""


def plain(product: Product, mesh: Mesh | None) -> Plain:
    """Make the calls that compute this product alone, in full float32, rows split among the devices as in training."""
    kind, whole, i, o = product
    n = min(whole, _MOST_ROWS)
    backend = _backend()
    most = min(_MOST_REPEATS[backend], max(1, _MOST_BYTES[backend] // (4 * n * max(i, o))))
    repeats = int(min(most, max(1, -(-_FLOPS[backend] // (2 * n * i * o)))))
    some = np.random.default_rng(0).standard_normal(4099, np.float32)

    def arrays(count: int, shape: tuple[int, int]) -> list[Any]:
        made = np.resize(some, shape)
        if mesh is None or n % mesh.size:
            first = jax.device_put(made)
        else:
            first = jax.device_put(made, devices.split(mesh, 0) if shape[0] == n else devices.whole(mesh))
        distinct = min(count, max(1, _MOST_FACTORS // made.nbytes))
        copies = [first, *(jnp.copy(first) for _ in range(distinct - 1))]
        return list(islice(cycle(copies), count))

    # Name of a call -> the shapes of both factors, and the function that multiplies them.
    ways: dict[str, tuple[tuple[int, int], tuple[int, int], Callable[[Any, Any], Any]]]
    if kind == "weights":
        x, g = (n, i), (n, o)
        ways = {"xᵀg": (x, g, lambda x, g: dot(x.T, g)), "gᵀx": (x, g, lambda x, g: dot(g.T, x))}
    else:
        inner, outer = (i, o) if kind == "forward" else (o, i)
        ways = {"xW": ((n, inner), (inner, outer), dot), "xWᵀ": ((n, inner), (outer, inner), lambda x, w: dot(x, w.T))}

    def call(left: tuple[int, int], right: tuple[int, int], multiply: Callable[[Any, Any], Any]) -> Callable[[], Any]:
        # Every product has its own arguments: XLA for GPUs would merge products that share a factor.
        lefts, rights = arrays(1, left) * repeats, arrays(repeats, right)
        products = devices.jit(lambda lefts, rights: [multiply(x, y) for x, y in zip(lefts, rights, strict=True)])

        def several() -> Any:
            found = None
            for _ in range(_CALLS[backend]):
                found = products(lefts, rights)
            return found

        return several

    name = f"{kind} {whole}x{i}x{o}"
    made = _CALLS[backend] * repeats * n / whole
    return Plain({f"{name} {way}": call(*how) for way, how in ways.items()}, made)


def dot(a: Any, b: Any) -> Any:
    """Multiply in full float32 on every backend, as the update does."""
    return jnp.matmul(a, b, precision="highest")


def copying(mesh: Mesh | None) -> tuple[Callable[[], Any], int]:
    """Return a call that reads and writes a large array, and the number of bytes it moves."""
    size = 2**26 if _backend() == "cpu" else 2**29
    if mesh is None:
        source = jnp.zeros(size, jnp.float32)
    else:
        source = jax.device_put(np.zeros(size, np.float32), devices.split(mesh, 0))
    add = jax.jit(lambda x: x + 1)
    return lambda: add(source), 2 * source.nbytes


def bytes_of(tree: Any) -> int:
    """Return the bytes of all arrays in a pytree."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree) if hasattr(leaf, "nbytes"))


class Floors:
    """The plain products and the copy of several works: the calls to be timed, and the floors that follow from the times."""

    def __init__(self, works: Sequence[Work], mesh: Mesh | None) -> None:
        self._plain = {product: plain(product, mesh) for product in sorted(set().union(*works))}
        self._copy, self._copied = copying(mesh)

    def calls(self) -> dict[str, Callable[[], Any]]:
        """Return all calls by name, for `clock.in_turns`."""
        every = [each.calls for each in self._plain.values()]
        return {name: call for calls in every for name, call in calls.items()} | {"copy": self._copy}

    def seconds(self, found: Mapping[str, list[float]], work: Work) -> list[float]:
        """Return the floor of the work in every round."""
        took = {product: self._took(found, product) for product in work}
        rounds = len(found["copy"])
        return [sum(count * took[product][k] for product, count in work.items()) for k in range(rounds)]

    def _took(self, found: Mapping[str, list[float]], product: Product) -> list[float]:
        """Return the times of one product in its faster layout."""
        calls, repeats = self._plain[product]
        best = min(calls, key=lambda name: statistics.median(found[name]))
        return [t / repeats for t in found[best]]

    def bandwidth(self, found: Mapping[str, list[float]]) -> list[float]:
        """Return the bytes per second of a copy in every round."""
        return [self._copied / t for t in found["copy"]]


def _backend() -> Literal["cpu", "gpu"]:
    return "cpu" if jax.default_backend() == "cpu" else "gpu"
