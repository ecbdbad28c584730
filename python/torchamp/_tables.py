"""Tables as text."""

from __future__ import annotations

from collections.abc import Sequence

_NUMERIC = set("0123456789.-+e%")


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned, numbers to the right."""
    columns = list(zip(*[header, *rows]))
    widths = [max(map(len, column)) for column in columns]
    right = [all(map(_is_number, column[1:])) for column in columns]
    lines = []
    for row in [header, ["-" * width for width in widths], *rows]:
        cells = (
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right)
        )
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _is_number(cell: str) -> bool:
    return set(cell) <= _NUMERIC
