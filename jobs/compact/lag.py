"""Lag of a store behind its archive: what the archive holds that no committed cleaning has reached, by the listing."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from lastkey.jobs.archive.listing import Archive
from lastkey.jobs.compact.report import CompactReport
from lastkey.jobs.store.rows import Checkpoint
from lastkey.jobs.topics import Key


def lag_of(archive: Archive, checkpoints: Mapping[Key, Checkpoint], report: CompactReport) -> dict[str, int]:
    """Return partitions, bytes and offsets that are not cleaned yet, and the file time of the oldest of their segments
    (0: there is none). A segment that is cleaned in part counts as a whole; the offsets end at the high watermark, or
    where the last segment begins, whichever is more.
    """
    cleaned = {key: row.first_dirty_offset for key, row in checkpoints.items()}
    ends = {}
    for r in report.results:
        ends[r.topic, r.partition] = r.next_offset
        if (r.topic, r.partition) in report.generations:
            cleaned[r.topic, r.partition] = r.first_dirty_offset
    lag, oldest = {"partitions": 0, "bytes": 0, "offsets": 0}, []
    for key, archived in archive.partitions.items():
        if not archived.segments:
            continue
        first = cleaned.get(key, archived.segments[0].base_offset)
        at = max(bisect_right(archived.segments, first, key=lambda s: s.base_offset) - 1, 0)
        end = max(archived.segments[-1].base_offset, archived.high_watermark or 0, ends.get(key, 0))
        rest = [s for s in archived.segments[at:] if s.size and first < max(end, s.base_offset + 1)]
        if rest:
            lag["partitions"] += 1
            lag["bytes"] += sum(s.size for s in rest)
            lag["offsets"] += max(end - first, 0)
            oldest.append(min(s.mtime_ms for s in rest))
    return lag | {"oldest_ms": min(oldest, default=0)}
