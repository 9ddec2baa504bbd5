"""The specification of read_committed in plain code: what a consumer of committed data sees of a log."""

from __future__ import annotations

from tests.reference.log import Batch

ABORT = 0


def last_stable_offset(batches: list[Batch], high_watermark: int | None = None) -> int:
    """Return the offset of the first batch of the oldest transaction without a marker below the high watermark; if
    there is none, the high watermark or the log end.
    """
    open_since: dict[int, int] = {}
    end = 0
    for batch in batches:
        end = batch.last_offset + 1
        if batch.control:
            if high_watermark is None or batch.base_offset < high_watermark:
                open_since.pop(batch.producer_id, None)
        elif batch.transactional:
            open_since.setdefault(batch.producer_id, batch.base_offset)
    return min([end if high_watermark is None else min(end, high_watermark), *open_since.values()])


def committed_offsets(batches: list[Batch]) -> list[int]:
    """Return the offsets of delivered records: data below the last stable offset, without aborted transactions."""
    end = last_stable_offset(batches)
    out = []
    for i, batch in enumerate(batches):
        if batch.control:
            continue
        if batch.transactional:
            marker = next((b for b in batches[i:] if b.control and b.producer_id == batch.producer_id), None)
            if marker is not None and marker.marker == ABORT:
                continue
        out += [record.offset for record in batch.records if record.offset < end]
    return out
