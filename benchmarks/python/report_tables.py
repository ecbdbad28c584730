"""Formats the results of each benchmark as Markdown tables."""

from __future__ import annotations

from markdown import table
from workloads import STEP_WORKLOADS, WORKLOADS, count_elements

#: Steps of a workload have a third decimal if one pass takes less.
FAST_MS = 5.0
NOT_QUEUED_AHEAD = "\\*: includes host time, because the work could not all be queued ahead."


def number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def mark(row: dict, name: str) -> str:
    return " \\*" if name in row["not_queued_ahead"] else ""


def with_note(text: str, rows: list[dict]) -> str:
    return f"{text}\n\n{NOT_QUEUED_AHEAD}" if any(row["not_queued_ahead"] for row in rows) else text


def spread(quartiles: list[float], form: str) -> str:
    return f"{quartiles[0]:{form}}–{quartiles[1]:{form}}"


def calls_table(rows: list[dict]) -> str:
    """Microseconds, without torchamp and with it."""
    head = ["call", "other models", "plain torch, us", "us", "quartiles"]
    cells = [
        [
            row["call"],
            str(row["others"]),
            f"{row['plain_us']:.2f}",
            f"{row['microseconds']:.2f}",
            spread(row["quartiles"], ".2f"),
        ]
        for row in rows
    ]
    return table(head, cells)


def ops_table(rows: list[dict]) -> str:
    """A table of ops that includes the bandwidth of each."""
    cells = []
    for row in rows:
        elements = count_elements({**STEP_WORKLOADS, **WORKLOADS}[row["workload"]])
        bandwidth = row["bytes_per_element"] * elements / row["torchamp_ms"] / 1e6
        cells.append([
            row["op"], row["workload"], f"{row['torchamp_ms']:.3f}{mark(row, 'torchamp')}",
            spread(row["quartiles"]["torchamp"], ".3f"), number(row["host_ms"]["torchamp"], ".3f"),
            f"{bandwidth:.0f}", f"{row['copy_ms']:.3f}", f"{row['of_copy']:.0%}",
            f"{number(row['torch_ms'], '.3f')}{mark(row, 'torch')}",
            number(row["times_torch"], ".2f"),
        ])  # fmt: skip
    head = ["op", "workload", "torchamp, ms", "quartiles", "host, ms", "GB/s", "copy, ms",
            "of a copy", "torch, ms", "× torch"]  # fmt: skip
    return with_note(table(head, cells, text_columns=2), rows)


def step_tables(rows: list[dict]) -> str:
    return with_note("\n\n".join(map(step_table, rows)), rows)


def step_table(row: dict) -> str:
    parts = [f"## {row['workload']}, {row['parameters']:,} parameters"]
    if row["not_run"]:
        parts.append(f"Not run: {row['not_run']}.")
    if row["milliseconds"]:
        parts.append(step_numbers(row))
    return "\n\n".join(parts)


def step_numbers(row: dict) -> str:
    form = ".3f" if min(row["one_pass_ms"].values()) < FAST_MS else ".2f"
    cells = []
    for name, milliseconds in row["milliseconds"].items():
        cells.append([
            name, f"{milliseconds:{form}}{mark(row, name)}", spread(row["quartiles"][name], form),
            f"{row['one_pass_ms'][name]:{form}}", f"{row['times_one_pass'][name]:.2f}",
            number(row["host_ms"][name], ".3f"),
            number(row["bytes_per_parameter"].get(name), ".0f"),
        ])  # fmt: skip
    head = ["step", "ms", "quartiles", "one pass in the same rounds, ms", "× one pass", "host, ms",
            "bytes/parameter"]  # fmt: skip
    return table(head, cells)


def apex_tables(rows: list[dict]) -> str:
    """Steps as a program calls them, and the device's part of each."""
    return "\n\n".join(map(apex_table, rows))


def apex_table(row: dict) -> str:
    cells = []
    for name, milliseconds in row["milliseconds"].items():
        cells.append([
            name, f"{milliseconds:.3f}", spread(row["quartiles"][name], ".3f"),
            f"{row['times_torchamp'][name]:.2f}", number(row["device_ms"][name], ".3f"),
            number(row["host_ms"][name], ".3f"),
            number(row["peak_bytes_per_parameter"][name], ".1f"),
        ])  # fmt: skip
    head = ["step", "ms", "quartiles", "× torchamp", "device, ms", "host, ms",
            "peak, bytes/parameter"]  # fmt: skip
    title = f"## {row['workload']}, {row['parameters']:,} parameters in {row['tensors']:,} tensors"
    return f"{title}\n\n{row['rounds']} rounds.\n\n{table(head, cells)}"


def training_tables(rows: list[dict]) -> str:
    return "\n\n".join(map(training_table, rows))


def training_table(row: dict) -> str:
    """Factors above 1 are faster than the baseline."""
    title = f"## {row['network']}, {row['items']:,} {row['unit']} per iteration"
    if row["not_run"]:
        return f"{title}\n\nNot run: {row['not_run']}."
    parts = [title, f"{row['parameters']:,} parameters, {row['rounds']} rounds."]
    if row["milliseconds"]:
        parts.append(training_numbers(row))
    left_out = [f"- {name}, left out: {reason}" for name, reason in row["left_out"].items()]
    return "\n\n".join([*parts, *filter(None, ["\n".join(left_out)])])


def training_numbers(row: dict) -> str:
    cells = []
    for name, milliseconds in row["milliseconds"].items():
        peak = row["peak_bytes"][name]
        cells.append([
            name, f"{milliseconds:.2f}", spread(row["quartiles"][name], ".2f"),
            number(row["host_ms"][name], ".2f"),
            number(row["times_as_fast_as_torch_amp"].get(name), ".2f"),
            number(row["times_as_fast_as_float32"].get(name), ".2f"),
            f"{row['items_per_second'][name]:,.0f}",
            number(peak and peak / 1e9, ".2f"), str(row["skipped_steps"][name]),
        ])  # fmt: skip
    head = ["variant", "ms", "quartiles", "host, ms", f"times as fast as {row['base']}",
            "times as fast as float32", f"{row['unit']}/s", "peak, GB", "skipped"]  # fmt: skip
    return table(head, cells)
