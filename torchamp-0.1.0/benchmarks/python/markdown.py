"""Tables in Markdown."""

from __future__ import annotations


def table(head: list[str], rows: list[list[str]], text_columns: int = 1) -> str:
    """A padded table, readable as plain text. The first text_columns are left-aligned, the others
    right-aligned."""
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    rules = ["-" * width for width in widths[:text_columns]]
    rules += ["-" * (width - 1) + ":" for width in widths[text_columns:]]
    return "\n".join(_line(cells, widths, text_columns) for cells in [head, rules, *rows])


def _line(cells: list[str], widths: list[int], text_columns: int) -> str:
    left = [cell.ljust(width) for cell, width in zip(cells, widths[:text_columns])]
    right = [cell.rjust(width) for cell, width in zip(cells[text_columns:], widths[text_columns:])]
    return f"| {' | '.join(left + right)} |"
