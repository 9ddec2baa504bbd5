"""Table of what each change of magic 3 saves, in bytes a record, by codec and records a batch."""

from __future__ import annotations

from functools import partial
from typing import Final

from lastkey.jobs.command.reporting import TextTable
from lastkey.udfs.report.format_savings import BATCH_SIZES, CHANGES, FormatBytes


def records_a_batch(first: int) -> str:
    """Return a batch size of BATCH_SIZES for people."""
    after = [size for size in BATCH_SIZES if size > first]
    return f"{first:,} and more" if not after else f"{first}" if after[0] == first + 1 else f"{first} to {after[0] - 1}"


def _by_record(row: FormatBytes, n: int) -> str:
    return f"{(row.bytes[n] - (row.bytes[n + 1] if 0 <= n < len(CHANGES) else 0)) / max(row.records, 1):.2f}"


FORMATS: Final = TextTable(
    "formats.rows",
    f"codec from_records:records_a_batch batches records v2 {' '.join(CHANGES)} v3 saved",
    {
        "from_records": lambda row: records_a_batch(row.from_records),
        "v2": lambda row: f"{row.bytes[0] / max(row.records, 1):.2f}",
        **{change: partial(_by_record, n=n) for n, change in enumerate(CHANGES)},
        "v3": partial(_by_record, n=-1),
        "saved": lambda row: 1 - row.bytes[-1] / row.bytes[0],
    },
    title="bytes a record by message format (convert --to v3):",
)
