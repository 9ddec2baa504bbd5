"""One side of a comparison, read from its first segment to its last: headers alone, or runs of batches with records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from lastkey.logformat.batches.chunks import Chunk
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.listing import Segment
from lastkey.udfs.storage import log_file, open_root
from lastkey.udfs.verify.digest_kernels import Records, digest_batches, digest_records, header_versions
from lastkey.udfs.verify.transactions import TXN_ROW, transaction_rows


@dataclass(frozen=True)
class Side:
    """Segments of one side, in order; batches below a segment's `from_offset` do not count."""

    segments: tuple[Segment, ...]
    end_offset: int  # batches that reach it do not count


@dataclass(frozen=True)
class Block:
    """A run of batches and its records."""

    path: str
    mtime_ms: int
    batches: np.ndarray  # BATCH[n], a copy
    plain: np.ndarray  # uint64[n]
    full: np.ndarray  # uint64[n]
    records: Records

    def after(self, offset: int) -> Block:
        """Return the part of the block above an offset."""
        first = int(np.searchsorted(self.batches["last_offset"], offset, "right"))
        row = int(np.searchsorted(self.records.batch, first))
        records = Records(*(column[row:] for column in self.records))
        records = records._replace(batch=records.batch - first)
        return Block(self.path, self.mtime_ms, self.batches[first:], self.plain[first:], self.full[first:], records)


def _chunks(side: Side, segment: Segment, reader: LogReader, *, check_crc: bool) -> Iterator[Chunk]:
    """Yield the batches of a segment that count."""
    listed = segment
    log = log_file(open_root(listed.root), listed.path, listed.size_bytes)
    for chunk in reader.chunks(log, end_offset=side.end_offset, check_crc=check_crc):
        yield replace(chunk, batches=chunk.batches[chunk.batches["last_offset"] >= segment.from_offset])


def scan_headers(side: Side, reader: LogReader) -> tuple[np.ndarray, list[tuple[int, int, int]]]:
    """Return (TXN_ROW[m] of a side, [(bytes, records, largest timestamp by the headers) of each segment])."""
    rows, sizes = [np.empty(0, TXN_ROW)], []
    for segment in side.segments:
        n_bytes, n_records, largest = 0, 0, -1
        for chunk in _chunks(side, segment, reader, check_crc=True):
            batches = chunk.batches
            rows.append(transaction_rows(batches))
            n_bytes += int(batches["size"].sum())
            n_records += int(np.abs(batches["records_count"]).sum(dtype=np.int64))
            largest = max(largest, int(batches["max_timestamp"].max(initial=-1)))
        sizes.append((n_bytes, n_records, largest))
    return np.concatenate(rows), sizes


@dataclass(frozen=True)
class Order:
    """`compaction.strategy`, the header that holds the version, and the log start: no reader sees records below it."""

    strategy: str = "offset"
    header: str = ""
    log_start_offset: int = 0


def _versions(run: Run, offset: np.ndarray, times: np.ndarray, by: Order) -> np.ndarray:
    versions = np.zeros(len(run.spans), np.int64)
    if by.strategy == "timestamp":
        np.maximum(times, -1, out=versions)
    if by.strategy == "header":
        name = np.frombuffer(by.header.encode(), np.uint8)
        header_versions(run, name, versions)
    if by.strategy != "offset":
        versions[offset < by.log_start_offset] = -2  # below the version of any readable record
    return versions


def blocks(
    side: Side, secret: tuple[int, int], max_batch_bytes: int, soft_bytes: int, by: Order = Order()
) -> Iterator[Block]:
    """Yield all runs of a side, in order. secret: of the key hash; max_batch_bytes, soft_bytes: as for BodyLoader."""
    reader = LogReader(max_batch_bytes=max_batch_bytes, soft_bytes=soft_bytes, secret=secret)
    k0, k1 = np.uint64(secret[0]), np.uint64(secret[1])
    for segment in side.segments:
        for chunk in _chunks(side, segment, reader, check_crc=False):
            for run in reader.runs(chunk):
                n = len(run.batches)
                plain, full = np.empty(n, np.uint64), np.empty(n, np.uint64)
                digest_batches(run.batches, plain, full)
                offset = np.empty(len(run.spans), np.int64)
                times, digest = np.empty(len(run.spans), np.int64), np.empty(len(run.spans), np.uint64)
                digest_records(run, k0, k1, offset, times, digest)
                low, high, null_key, null_value = (
                    run.spans[name].copy() for name in ("key_low", "key_high", "null_key", "null_value")
                )
                batch, versions = np.repeat(np.arange(n), run.bodies["n_records"]), _versions(run, offset, times, by)
                records = Records(batch, offset, times, digest, low, high, null_key, null_value, versions)
                yield Block(chunk.path, segment.mtime_ms, run.batches.copy(), plain, full, records)
