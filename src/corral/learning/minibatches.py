"""One pass over a batch in minibatches, for networks that are trained by gradient steps."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, Key

Carry = TypeVar("Carry")


def one_pass(
    rows: Bool[Array, " n"],
    size: int,
    key: Key[Array, ""],
    step: Callable[[Carry, Int[Array, " k"], Bool[Array, " k"]], Carry],
    start: Carry,
) -> Carry:
    """`step(carry, indices, counts)` for every minibatch of `size` of these rows, all in random order, none twice.

    The last minibatch is filled up from the first rows. Where there are fewer rows than one minibatch holds, `counts` is
    False on the repeated ones.
    """
    size, count = min(size, len(rows)), jnp.sum(rows)
    order = shuffled(rows, key)

    def one(k: Array, carry: Carry) -> Carry:
        place = k * size + jnp.arange(size)
        return step(carry, order[place % jnp.maximum(count, 1)], (place < count) | (k > 0))

    done: Carry = lax.fori_loop(0, -(-count // size), one, start)
    return done


# With this many rows, 14 of 31 bits are left to chance, and about eight rows share each draw.
_FEW = 2**17


def shuffled(rows: Bool[Array, " n"], key: Key[Array, ""]) -> Int[Array, " n"]:
    """Indices of these rows in random order, then those of the others.

    One sort of one array whose low bits are the rows' numbers is nine times as fast on a CPU as a permutation, which sorts
    pairs, twice. Rows that draw the same high bits keep their order: a handful at most up to `_FEW` rows. More rows are
    sorted as pairs.
    """
    drawn = jax.random.bits(key, rows.shape, jnp.uint32) >> 1
    drawn = drawn | jnp.where(rows, jnp.uint32(0), jnp.uint32(1 << 31))
    if len(rows) > _FEW:
        return jnp.argsort(drawn)
    low = _FEW.bit_length() - 1
    packed = (drawn >> low << low) | jnp.arange(len(rows), dtype=jnp.uint32)
    return (jnp.sort(packed) & jnp.uint32(_FEW - 1)).astype(jnp.int32)
