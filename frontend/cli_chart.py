"""Charts of a program, from left to right: how high something is, and when something is there. Plain characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["Chart"]

_LABEL = 9
_ROWS = 10


class Chart:
    """The time axis: a program of `length` positions, from 1 on, in as many columns as the terminal and it have."""

    def __init__(self, length: int, terminal: int) -> None:
        self.length = length
        self.width = max(1, min(length, terminal - _LABEL - 5))

    def column(self, position: int) -> int:
        return (position - 1) * self.width // self.length

    def heights(self, steps: Sequence[tuple[int, int]], limit: int) -> list[str]:
        """Rows of a curve, the highest first. steps: (position, height from there on).

        The limit is a row of `-` where the curve comes near it; what is above is drawn with `!`.
        """
        columns = self.highest(steps)
        most = max(columns)
        top = max(most, limit) if 2 * most >= limit else most
        lines = []
        for row in range(_ROWS, 0, -1):
            low, high = top * (row - 1) / _ROWS, top * row / _ROWS
            free = "-" if low < limit <= high else " "
            cells = "".join(free if height <= low else "!" if min(height, high) > limit else "#" for height in columns)
            label = top if row == _ROWS else limit if free == "-" else ""
            lines.append(self._line(str(label), cells))
        return lines

    def highest(self, steps: Sequence[tuple[int, int]]) -> list[int]:
        """The highest of each column."""
        columns = [0] * self.width
        ends = [*(position for position, _ in steps[1:]), self.length + 1]
        for (first, height), end in zip(steps, ends, strict=True):
            for column in range(self.column(first), self.column(min(end - 1, self.length)) + 1):
                columns[column] = max(columns[column], height)
        return columns

    def lane(self, label: str, spans: Iterable[Sequence[int]], mark: str) -> str:
        """A row with marks in the spans, each from its first position to its last."""
        cells = ["."] * self.width
        for first, last in spans:
            for column in range(self.column(first), self.column(last) + 1):
                cells[column] = mark
        return self._line(label, "".join(cells))

    def axis(self, position: int, text: str) -> list[str]:
        """The line below, and a text at a position of it."""
        place = self.column(position)
        pointed = f"{'':>{place}}^ {text}"
        if len(pointed) > self.width and place > len(text):
            pointed = f"{text:>{place - 1}} ^"
        return [f"  {'':>{_LABEL}} +{'-' * self.width}", f"  {'':>{_LABEL}}  {pointed}"]

    def _line(self, label: str, cells: str) -> str:
        return f"  {label:>{_LABEL}} |{cells}".rstrip()
