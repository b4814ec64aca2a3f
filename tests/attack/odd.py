"""Values that nobody expects."""

import math
import random
import string
from typing import Any


def number(rng: random.Random) -> float | int:
    """A number of any size and kind."""
    return rng.choice(
        [
            lambda: rng.randint(-3, 3),
            lambda: rng.choice([-1, 1]) * 10 ** rng.randint(1, 40),
            lambda: rng.choice([2**31, 2**32, 2**53, 2**63, 2**64]) + rng.randint(-1, 1),
            lambda: rng.uniform(-2, 2),
            lambda: rng.choice([-1.0, 1.0]) * 10.0 ** rng.uniform(-320, 308),
            lambda: rng.choice([math.nan, math.inf, -math.inf, -0.0]),
        ]
    )()


def text(rng: random.Random) -> str:
    """A string of any characters, also of none and of very many."""
    letters = rng.choice(
        [string.ascii_letters, string.printable, "\0\x01\x1b[", "λ±…☃𝕏\u202e", "../", "-", "=", "%{}[]"]
    )
    return "".join(rng.choice(letters) for _ in range(rng.choice([0, 1, 3, 10, 300])))


def value(rng: random.Random, depth: int = 0) -> Any:
    """A number, a string, a truth value, or a list or dict of such."""
    kinds = [number, text, lambda r: r.random() < 0.5]
    if depth < 3:
        kinds += [
            lambda r: [value(r, depth + 1) for _ in range(r.randint(0, 3))],
            lambda r: {text(r)[:5]: value(r, depth + 1) for _ in range(r.randint(0, 3))},
        ]
    return rng.choice(kinds)(rng)


def word(rng: random.Random) -> str:
    """A word of a command line: no NUL can be in one, but Python callers may pass it."""
    digits = "9" * rng.choice([1, 20, 400, 5000])
    return str(rng.choice([number, text, lambda r: digits, lambda r: r.choice(["", "nan", "0x10", "1_0", "١"])])(rng))
