"""Facts about a cleaned segment of the store, kept beside it, so that a run by yield need not read the segment itself.

  <base>.facts    its scan: what a scan of the `.log` gives, from the very bytes that were written and read back
  <base>.filter   its keys, as a filter (`udfs.yields.key_filter`)

Both end with a CRC-32C over the file, the segment's own checksum and what else they depend on. If a file is lost, stale
or damaged, its segment is read and rewritten. The file `hash.key` in the generation's folder holds the key of all
hashes and the time when that key was drawn; without this file the run cleans the whole log under a new key.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np

from lastkey.logformat.batches.chunks import Chunk, ChunkBuffer, read_exactly
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import CONTROL_MASK, DELETE_HORIZON_MASK
from lastkey.logformat.listing import Segment
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.logformat.side_files.producer_state import ProducerSummary
from lastkey.udfs.compact.plan import CleanSettings, PartitionPlan
from lastkey.udfs.compact.scan.scan_segment import scan_segment
from lastkey.udfs.segments import LastBatch, ScannedChunk, SegmentScan, files_beside
from lastkey.udfs.storage import Root, file_size, make_private, open_root, opened, put_file
from lastkey.udfs.yields.key_filter import FILTER_BLOCK, build_filter, hash_key_id

SECRET: Final = "hash.key"
_SECRET: Final = struct.Struct(">QQq")
_TRAILER: Final = 4  # bytes of the CRC-32C


def scan_written(
    plan: PartitionPlan, row: Segment, buffer: ChunkBuffer, also: Callable[[Chunk], None]
) -> tuple[SegmentScan, np.ndarray]:
    """Read a segment that this run has written; return its scan and the hashes of its keys, uint64[n].

    also: sees every chunk. Raises LogFormatError kind "readback", or "unreadable".
    """
    hashes, horizons = [np.empty(0, np.uint64)], [-1]
    loader = plan.loader(plan.run.secret, keys_only=True)

    def see(chunk: Chunk) -> None:
        also(chunk)
        batches = chunk.batches
        data = (batches["attributes"] & CONTROL_MASK) == 0
        has_horizon = (batches["magic"] >= 2) & ((batches["attributes"] & DELETE_HORIZON_MASK) != 0)
        horizons.append(int(batches["base_timestamp"][has_horizon].max(initial=-1)))
        for run in loader.runs(chunk, data):
            hashes.append(run.spans["key_high"][~run.spans["null_key"]])

    listed = Segment(plan.run.store_uri, row.path, row.base_offset, row.size_bytes, row.mtime_ms)
    try:
        scan = scan_segment(listed, plan.policy.settings, buffer, see=see)
    except LogFormatError as error:
        if error.kind in ("readback", "unreadable"):
            raise
        raise LogFormatError("readback", row.path, error.position, "what was written", str(error)) from error
    return replace(scan, last_horizon_ms=max(horizons)), np.concatenate(hashes)


def write_facts(plan: PartitionPlan, row: Segment, scan: SegmentScan, hashes: np.ndarray) -> int:
    """Write a segment's facts and its filter beside it. Returns their bytes."""
    store, bound = open_root(plan.run.store_uri), _bound(plan, row)
    files = _packed(scan), build_filter(hashes).tobytes()
    for path, data in zip(files_beside(row.path), files, strict=True):
        _write(store, path, data, bound)
    return sum(map(len, files))


def scan_by_facts(plan: PartitionPlan, segment: Segment) -> SegmentScan | None:
    """Return the scan of a cleaned segment without reading it; None if its facts are missing or belong to other
    bytes. Raises LogFormatError kind "changed" if the segment itself is missing or shorter.
    """
    if not segment.has_facts:
        return None
    store = open_root(plan.run.store_uri)
    data = _read(store, files_beside(segment.path)[0], _bound(plan, segment))
    if data is None:
        return None
    size = file_size(store, segment.path)
    if size != segment.size_bytes:
        raise LogFormatError("changed", segment.path, 0, f"{segment.size_bytes} bytes, as listed", f"{size}")
    return replace(_unpacked(data, segment), facts_bytes=len(data) + _TRAILER)


def filter_beside(plan: PartitionPlan, row: Segment) -> np.ndarray | None:
    """Return the filter of a segment's keys: uint32[8 * blocks]; None if missing or of other bytes."""
    data = _read(open_root(plan.run.store_uri), files_beside(row.path)[1], _bound(plan, row))
    return np.frombuffer(data, np.uint32) if data and len(data) % FILTER_BLOCK == 0 else None


def write_secret(store: Root, plan: PartitionPlan) -> None:
    """Write the key of the hashes, for the owner alone."""
    data = _SECRET.pack(*plan.run.secret, plan.run.secret_ms)
    _write(store, f"{plan.run.folder}/{SECRET}", data, b"")


def read_secret(store: Root, folder: str) -> tuple[tuple[int, int], int] | None:
    """Return the key of a generation's hashes and the time in ms when it was drawn; None if it is lost."""
    data = _read(store, f"{folder}/{SECRET}", b"")
    if data is None or len(data) != _SECRET.size:
        return None
    low, high, at = _SECRET.unpack(data)
    return (low, high), at


def _bound(plan: PartitionPlan, row: Segment) -> bytes:
    """Return the identity that a file is bound to: segment bytes, key of the hashes, settings of the indexes."""
    settings: CleanSettings = plan.policy.settings
    secret = hash_key_id(plan.run.secret).hex()
    return json.dumps(
        [2, row.size_bytes, row.checksum, secret, settings.index_interval_bytes, settings.segment_index_bytes]
    ).encode()


def _checksum(data: bytes, path: str, bound: bytes) -> bytes:
    """Return the CRC-32C of data, of what it is bound to, and of the kind of its file."""
    bound += path.rpartition(".")[2].encode()
    crc = crc32c_extend(crc32c_extend(0, np.frombuffer(bound, np.uint8)), np.frombuffer(data, np.uint8))
    return int(crc).to_bytes(_TRAILER, "big")


def _write(store: Root, path: str, data: bytes, bound: bytes) -> None:
    make_private(store, path)
    put_file(store, path, data + _checksum(data, path, bound))


def _read(store: Root, path: str, bound: bytes) -> bytes | None:
    with suppress(LogFormatError, OSError), opened(store, path) as file:
        raw = np.empty(file.size(), np.uint8)
        read_exactly(file, path, 0, raw)
        data = raw[:-_TRAILER].tobytes()
        if raw[-_TRAILER:].tobytes() == _checksum(data, path, bound):
            return data
    return None


# Facts of a scan beside its arrays, in the order of the file; the segment's row has some of them too
_PLAIN: Final = (
    "start_position", "end_position", "torn_bytes", "reached_end_offset", "n_batches", "n_records", "last_offset",
    "max_timestamp", "first_timestamp", "codecs", "last_batch", "marked_batch", "checksum", "thinned_offset",
    "indexed_end", "above_base", "bytes_above", "wrapped_records", "facts_bytes", "last_horizon_ms",
)  # fmt: skip
_OF_ROW: Final = {
    "n_batches": "batches", "n_records": "records", "last_offset": "last_offset", "max_timestamp": "max_timestamp_ms",
    "codecs": "codecs", "checksum": "checksum",
}  # fmt: skip


def _packed(scan: SegmentScan) -> bytes:
    plain = {name: getattr(scan.segment, _OF_ROW[name]) if name in _OF_ROW else getattr(scan, name) for name in _PLAIN}
    plain |= {name: list(vars(plain[name]).values()) for name in ("last_batch", "marked_batch")}
    out = io.BytesIO()
    np.savez(
        out,
        plain=np.frombuffer(json.dumps(plain).encode(), np.uint8),
        chunks=np.array(scan.chunks, np.int64).reshape(-1, len(ScannedChunk._fields)),
        transactional=_without_padding(scan.transactional),
        producers=_without_padding(scan.producers.producers),
        markers=_without_padding(scan.producers.markers),
        epochs=np.array(scan.epochs, np.int64).reshape(-1, 2),
        offset_index=np.frombuffer(scan.offset_index, np.uint8),
        time_index=np.frombuffer(scan.time_index, np.uint8),
    )
    return out.getvalue()


def _without_padding(rows: np.ndarray) -> np.ndarray:
    """Return rows with zeros between their fields: other contents of that memory must not reach the file."""
    out = np.zeros(rows.shape, rows.dtype)
    for name in rows.dtype.names or ():
        out[name] = rows[name]
    return out


def _unpacked(data: bytes, segment: Segment) -> SegmentScan:
    with np.load(io.BytesIO(data), allow_pickle=False) as held:
        plain = {k: v for k, v in json.loads(held["plain"].tobytes()).items() if k not in _OF_ROW}
        plain |= {name: LastBatch(*plain[name]) for name in ("last_batch", "marked_batch")}
        return SegmentScan(
            segment=segment,
            chunks=tuple(ScannedChunk(*row) for row in held["chunks"].tolist()),
            transactional=held["transactional"],
            producers=ProducerSummary(held["producers"], held["markers"]),
            epochs=tuple((epoch, base) for epoch, base in held["epochs"].tolist()),
            offset_index=held["offset_index"].tobytes(),
            time_index=held["time_index"].tobytes(),
            **plain,
        )
