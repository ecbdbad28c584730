"""Tables as text and as HTML."""

from __future__ import annotations

import html
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


def html_table(
    title: str, header: Sequence[str], rows: Sequence[Sequence[str]], below: str = ""
) -> str:
    """For notebooks."""
    heads = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in rows)
    return (
        f"<p><b>{html.escape(title)}</b></p>"
        f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
        f"<p>{html.escape(below)}</p>"
    )


def _html_cell(cell: str) -> str:
    indent = len(cell) - len(cell.lstrip())
    align = "right" if cell and _is_number(cell) else "left"
    style = f"text-align:{align};padding-left:{0.5 + 0.5 * indent}em"
    return f'<td style="{style}">{html.escape(cell.strip())}</td>'
