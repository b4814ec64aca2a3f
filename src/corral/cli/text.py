"""Text for terminals that cannot show all of it: what an encoding lacks is written with what it has."""

import codecs
from typing import Any

_PLAIN = {
    **{"…": "...", "±": "+-", "≤": "<=", "≥": ">=", "≈": "~", "×": "x", "·": "*", "−": "-", "–": "-", "→": "->"},
    **{"√": "sqrt", "²": "2", "₀": "0", "▪": "o", "▴": "^", "▲": "^", "✕": "x", "✓": "v", "⁻": "-", "⁺": "+"},
    **{"λ": "lambda", "ν": "nu", "γ": "gamma", "δ": "delta", "α": "alpha", "ε": "epsilon", "θ": "theta", "σ": "sigma"},
    **dict.fromkeys("─━╌╸╺═", "-"),
    **dict.fromkeys("│┃║", "|"),
    **dict.fromkeys("┤├┼┌┐└┘╭╮╰╯┬┴╞╡", "+"),
    **dict.fromkeys("“”„«»", '"'),
    **dict.fromkeys("‘’‚", "'"),
}

_UPPER, _LOWER = 0b00011011, 0b11100100
"""The dots of a braille character in its upper and in its lower half."""


def plain(character: str) -> str:
    """A character in ASCII: curves of braille dots as points, Greek by name, "?" for what has no such likeness."""
    dots = ord(character) - 0x2800
    if 0 <= dots < 256:
        return " '.:"[bool(dots & _UPPER) + 2 * bool(dots & _LOWER)]
    return _PLAIN.get(character, "?")


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(plain, error.object[error.start : error.end])), error.end


codecs.register_error("corral", _replaced)


def show_what_can_be_shown(*streams: Any) -> None:
    """Make these streams write every text, whatever their encoding."""
    for stream in streams:
        reconfigure = getattr(stream, "reconfigure", None)  # a program may have put any object in the place of stdout
        if reconfigure is not None:
            reconfigure(errors="corral")
