"""Segments moved into the generation's folder: those that tasks wrote in folders of their own, and empty ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final, TypeVar

import google_crc32c
import numpy as np

from lastkey.logformat.layout import MAX_RELATIVE_OFFSET, MAX_SEGMENT_BYTES, OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from lastkey.logformat.names import segment_file
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.scan.analyse import Group
from lastkey.udfs.read_back import check_written
from lastkey.udfs.segments import OF_YIELD, OutputSegment, kinds_of, side_checksums
from lastkey.udfs.storage import Root, make_folder, make_private, open_root, put_file, read_file

S = TypeVar("S", Group, OutputSegment)

_MOVERS: Final = 8  # segments to move at once: in a bucket each is copied and read back
_SHIFTED: Final = {"index": OFFSET_INDEX_ENTRY, "timeindex": TIME_INDEX_ENTRY}  # their offsets are relative to the base


def folder_of(plan: PartitionPlan) -> Root:
    """Make the generation's folder; return the store."""
    return make_folder(open_root(plan.run.store_uri), plan.run.folder)


def write_side_files(store: Root, folder: str, files: Mapping[str, bytes]) -> dict[str, int]:
    """Write files of a generation beside its logs; return their CRC-32C by name. They are flushed with their folder."""
    for name, data in files.items():
        put_file(store, f"{folder}/{name}", data)
    return {name: int(google_crc32c.value(data)) for name, data in files.items()}


def write_indexes(
    store: Root, folder: str, base_offset: int, offset_index: bytes, time_index: bytes, txn_index: bytes
) -> dict[str, int]:
    """Write `.index` and `.timeindex`, and `.txnindex` unless empty, as Kafka does; return their CRC-32C by name."""
    files = {"index": offset_index, "timeindex": time_index} | ({"txnindex": txn_index} if txn_index else {})
    named = {segment_file(base_offset, kind): data for kind, data in files.items()}
    return write_side_files(store, folder, named)


def join_empty_groups(plan: PartitionPlan, segments: Sequence[OutputSegment]) -> list[OutputSegment]:
    """Join empty segments to those behind them, as `one_task.clean_groups` does, and place all. The segments come in
    order from tasks that knew nothing of each other; an empty one that cannot be joined becomes an empty file.
    """
    out: list[OutputSegment] = []
    held: OutputSegment | None = None
    for segment in reversed(segments):
        if held is not None and not segment.size_bytes and can_begin_at(held.last_offset, segment.base_offset):
            held = begin_at(held, segment)
            continue
        if held is not None:
            out.append(held)
        held = segment
    if held is not None:
        out.append(held)
    return place(plan, out[::-1])


def place(plan: PartitionPlan, segments: Sequence[OutputSegment]) -> list[OutputSegment]:
    """Move the segments that tasks wrote into the generation's folder; return all segments, in order."""
    with ThreadPoolExecutor(_MOVERS) as pool:
        return list(pool.map(lambda segment: place_one(plan, segment) if segment.cleaned else segment, segments))


def can_begin_at(last_offset: int, base_offset: int) -> bool:
    """Return whether a segment that ends with this batch (-1: it has none) may take an earlier base: offsets in its
    indexes are relative.
    """
    return last_offset - base_offset <= MAX_RELATIVE_OFFSET


def begin_at(segment: S, empty: S) -> S:
    """Return the segment, or group, with the base of an empty one before it. `place_one` renames its files."""
    return replace(segment, base_offset=empty.base_offset)


def place_one(plan: PartitionPlan, segment: OutputSegment) -> OutputSegment:
    """Move the segment's files into the generation's folder, under the name of its base. No task writes there, so a
    late retry cannot touch them.
    """
    if plan.run.dry_run:
        return segment
    store = folder_of(plan)
    path = f"{plan.run.folder}/{segment_file(segment.base_offset, 'log')}"
    if not segment.size_bytes:
        make_private(store, path)
        put_file(store, path, b"")
        checksums = write_indexes(store, plan.run.folder, segment.base_offset, b"", b"", b"")
        return replace(segment, path=path, side_files=json.dumps(checksums))
    written, placed = segment.path.removesuffix(".log"), path.removesuffix(".log")
    written_base = int(written.rpartition("/")[2])
    shift = written_base - segment.base_offset
    known, checksums = side_checksums([segment.side_files]), {}
    for kind in kinds_of(segment):
        if shift and kind in OF_YIELD:  # they hold relative offsets, and cost only time if they are missing
            continue
        old, new = f"{written}.{kind}", f"{placed}.{kind}"
        if shift and kind in _SHIFTED:
            data = _shifted(store, old, shift, _SHIFTED[kind])
            checksums |= write_side_files(store, plan.run.folder, {segment_file(segment.base_offset, kind): data})
            continue
        if kind not in ("log", *OF_YIELD):
            checksums[segment_file(segment.base_offset, kind)] = known[segment_file(written_base, kind)]
        if store.is_local:
            store.filesystem.move(store.full(old), store.full(new))  # the very file that was read back
        else:
            store.filesystem.copy_file(store.full(old), store.full(new))
    if not store.is_local:
        check_written(store, path, segment.size_bytes, segment.checksum)
    facts_bytes = 0 if shift else segment.facts_bytes
    return replace(segment, path=path, side_files=json.dumps(checksums), facts_bytes=facts_bytes)


def _shifted(store: Root, path: str, shift: int, entry: np.dtype[np.void]) -> bytes:
    """Return an index with all offsets increased by `shift`, because its base moved down by as much."""
    entries = np.frombuffer(read_file(store, path, MAX_SEGMENT_BYTES), entry).copy()
    entries["relative_offset"] += shift
    return entries.tobytes()
