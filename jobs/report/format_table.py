"""Table of what each change of magic 3 saves, in bytes a record, by codec and records a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lastkey.jobs.command.reporting import count
from lastkey.udfs.report.format_savings import BATCH_SIZES, CHANGES, FormatBytes

FORMAT_HEADER: Final = ("codec", "records a batch", "batches", "records", "v2", *CHANGES, "v3", "saved")


def format_rows(rows: Sequence[FormatBytes]) -> list[tuple[str, ...]]:
    """Return rows under FORMAT_HEADER: bytes a record in v2, what each change saves of them, and what is left."""
    return [
        (
            row.codec,
            records_a_batch(row.from_records),
            count(row.batches),
            count(row.records),
            *(f"{number:.2f}" for number in _by_record(row)),
            f"{100 * (1 - row.bytes[-1] / row.bytes[0]):.1f} %",
        )
        for row in rows
    ]


def _by_record(row: FormatBytes) -> list[float]:
    steps = [(before - after) for before, after in zip(row.bytes, row.bytes[1:], strict=False)]
    return [number / max(row.records, 1) for number in (row.bytes[0], *steps, row.bytes[-1])]


def records_a_batch(first: int) -> str:
    """Return a batch size of BATCH_SIZES for people."""
    after = [size for size in BATCH_SIZES if size > first]
    return f"{first:,} and more" if not after else f"{first}" if after[0] == first + 1 else f"{first} to {after[0] - 1}"
