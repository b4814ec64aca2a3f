"""Curves in a terminal: every character cell is a grid of 2 × 4 braille dots with one colour."""

import math
from collections.abc import Sequence

from rich.text import Text

# Bit of the dot at [row][column] of a cell, as Unicode numbers them.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


class Canvas:
    """`width` × `height` cells that show y in [low, high] from bottom to top and x in [0, 1] from left to right."""

    def __init__(self, width: int, height: int, low: float, high: float) -> None:
        self.width, self.height = width, height
        self.low, self.high = low, high if high > low else low + 1.0
        self._dots = [[0] * width for _ in range(height)]
        self._styles = [[""] * width for _ in range(height)]
        self._dashes: dict[int, str] = {}

    def row(self, y: float) -> int:
        """The cell row, from the top, in which the value y lies."""
        return self._dot_row(y) // 4

    def curve(self, xs: Sequence[float], ys: Sequence[float], style: str) -> None:
        """Points joined by lines; a value that is not finite makes a gap, one outside the range sticks to its edge."""
        before: tuple[int, int] | None = None
        for x, y in zip(xs, ys, strict=True):
            if not math.isfinite(y):
                before = None
                continue
            point = (self._dot_column(x), self._dot_row(y))
            for column, row in _segment(before or point, point):
                self._dot(column, row, style)
            before = point

    def band(self, xs: Sequence[float], lows: Sequence[float], highs: Sequence[float], style: str) -> None:
        """The area between two curves, thinly filled."""
        columns = [self._dot_column(x) for x in xs]
        for here, after, low, high in zip(columns, [*columns[1:], columns[-1]], lows, highs, strict=True):
            if math.isfinite(low) and math.isfinite(high):
                for column in range(here, max(after, here + 1)):
                    for row in range(self._dot_row(high), self._dot_row(low) + 1):
                        if (column + row) % 2 == 0:
                            self._dot(column, row, style)

    def level(self, y: float, style: str) -> None:
        """A dashed horizontal line behind everything else."""
        if self.low <= y <= self.high:
            self._dashes[self.row(y)] = style

    def rows(self) -> list[Text]:
        """The picture, line by line."""
        lines = []
        for r in range(self.height):
            line = Text()
            for dots, style in zip(self._dots[r], self._styles[r], strict=True):
                if dots:
                    line.append(chr(0x2800 + dots), style)
                else:
                    line.append("╌" if r in self._dashes else " ", self._dashes.get(r, ""))
            lines.append(line)
        return lines

    def _dot(self, column: int, row: int, style: str) -> None:
        self._dots[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
        self._styles[row // 4][column // 2] = style

    def _dot_column(self, x: float) -> int:
        return round(min(max(x, 0), 1) * (2 * self.width - 1))

    def _dot_row(self, y: float) -> int:
        share = (min(max(y, self.low), self.high) - self.low) / (self.high - self.low)
        return round((1 - share) * (4 * self.height - 1))


def round_range(low: float, high: float) -> tuple[float, float]:
    """A range with round ends that contains [low, high], but for a fiftieth of it."""
    size = (high - low) or abs(high) or 1.0
    step = 10.0 ** math.floor(math.log10(size))
    step = next(step * part for part in (0.1, 0.2, 0.5, 1.0) if size / (step * part) <= 10)
    slack = size / 50
    low, high = math.floor((low + slack) / step) * step, math.ceil((high - slack) / step) * step
    return low, high if high > low else low + step


def _segment(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots of a straight line."""
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (round(start[0] + (end[0] - start[0]) * k / steps), round(start[1] + (end[1] - start[1]) * k / steps))
        for k in range(steps + 1)
    ]
