"""Keys in a `.log`: every record in its bytes, regardless of transactions and log offsets.

Aborted records count, and so do those above the high watermark and below the log start; the offsets of the segment's
name are not checked. Only control records are left out, whose keys are Kafka's own. A byte range that cannot be read as
records is a problem, and its raw bytes are searched: a match there is reported as "may", and a missing match does not
prove absence.

In memory at a time: a chunk, 32 MiB of decompressed batches or one batch, and what was found in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lastkey.logformat.batches.bodies import BadBatch
from lastkey.logformat.batches.chunks import CHUNK_BYTES, Chunk, only_zeros, read_exactly
from lastkey.logformat.batches.columns import TopicPartition, record_batches
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.errors import LogFormatError, stopped
from lastkey.logformat.layout import CONTROL_MASK
from lastkey.logformat.schemas import RECORDS, select
from lastkey.logformat.storage.regular_files import LogFile
from lastkey.udfs.data_source.pieces import Piece
from lastkey.udfs.data_source.read_piece import resume_position
from lastkey.udfs.key_search.findings import MAY, Found, SearchFile
from lastkey.udfs.key_search.key_set import KeySet
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import cached_root, opened

_COLUMNS: Final = select(RECORDS, ["key", "offset", "timestamp_ms", "position"])
_FIRST: Final = -(1 << 62)  # no offset is below


class LogSearch:
    """Search of one log after the other, with the same buffers."""

    def __init__(self, keys: KeySet) -> None:
        self.keys = keys
        self.reader = LogReader(secret=keys.secret)

    def search(self, file: SearchFile, findings: Found) -> None:
        """Add to `findings` what a log holds of the keys, and the problems of what cannot be read."""
        self.reader.buffer.max_batch_bytes = self.reader.loader.max_batch_bytes = file.max_batch_bytes
        position, previous = 0, -1
        while position < file.size:
            try:
                with opened(cached_root(file.root), file.path) as log:
                    grown = self._grown(log, file)
                    listed = LogFile.opened(log, file.shown, file.size)
                    for chunk in self.reader.chunks(listed, position, previous_last_offset=previous):
                        self._chunk(file, chunk, findings)
                        position, previous = chunk.end, chunk.last_offset
                    if grown is not None:
                        findings.problem(grown, "what was appended meanwhile was not read")
                    tail = self.reader.tail
                    torn = tail.torn_bytes and not only_zeros(log, file.shown, tail.position, file.size)
                if torn:
                    whole = "whole batches up to the end"
                    error = LogFormatError(
                        "torn_tail", file.shown, tail.position, whole, f"{tail.torn_bytes} more bytes"
                    )
                    self._unread(file, Problem.of(error), tail.position, file.size, findings)
                return
            except Exception as found_error:  # any error: the problem names the file
                error = stopped(found_error, file.shown)
            if error.kind == "offsets" and previous >= 0:  # read the batch again without the check of order
                previous = -1
                continue
            index = None if file.index is None else (file.root, file.index)
            piece = Piece(file.topic, file.partition, file.root, file.path, file.base_offset, 0, file.size, index=index)
            following = resume_position(cached_root(file.root), piece, error, position)
            end = file.size if following is None else following
            self._unread(file, Problem.of(error), position, end, findings)
            position, previous = end, -1

    def _grown(self, log: Any, file: SearchFile) -> Problem | None:
        """Return the problem of a log that has grown. Raises LogFormatError if it has shrunk."""
        try:
            check_size(log, file)
        except LogFormatError as error:
            if int(error.found) < file.size:
                raise
            return Problem.of(error)
        return None

    def _chunk(self, file: SearchFile, chunk: Chunk, findings: Found) -> None:
        batches = chunk.batches
        wanted = (batches["records_count"] != 0) & (batches["attributes"] & CONTROL_MASK == 0)
        for part in self.reader.runs_around_damage(chunk, wanted):
            if isinstance(part, BadBatch):
                bad = batches[part.row]
                start = int(bad["position"])
                self._unread(file, Problem.of(part.error), start, start + int(bad["size"]), findings)
            else:
                self._run(part, findings)

    def _run(self, run: Run, findings: Found) -> None:
        spans = run.spans
        keep = ~spans["null_key"] & self.keys.may_hold(spans["key_high"])
        if not keep.any():
            return
        high, tombstone, row = spans["key_high"][keep], spans["null_value"][keep], 0
        for records in record_batches(run, _COLUMNS, TopicPartition(), start_offset=_FIRST, keep=keep):
            part = slice(row, row + len(records))
            rows = self.keys.rows(high[part], records.column("key"))
            held = pa.array(rows >= 0)
            findings.add(
                rows[rows >= 0],
                records.column("position").filter(held),
                records.column("offset").filter(held),
                records.column("timestamp_ms").filter(held),
                pa.array(tombstone[part]).filter(held),
            )
            row += len(records)

    def _unread(self, file: SearchFile, problem: Problem, start: int, end: int, findings: Found) -> None:
        """Note a stretch that cannot be read as records, and search its bytes."""
        findings.problem(problem, f"bytes {start:,} to {end - 1:,} of {file.size:,} were not read as records")
        try:
            with opened(cached_root(file.root), file.path) as log:
                search_bytes(self.keys, make_reader(log, file.shown), start, end, findings)
        except LogFormatError as error:
            if error.kind not in ("unreadable", "changed"):  # the problem itself names those
                raise


Read = Callable[[int, np.ndarray], None]  # fills the array (uint8) with the bytes from a position on


def make_reader(file: Any, path: str) -> Read:
    """Return a function that reads from an open file. It raises LogFormatError."""
    return lambda position, out: read_exactly(file, path, position, out)


def search_bytes(keys: KeySet, read: Read, start: int, end: int, findings: Found) -> None:
    """Add the first place of each key in bytes [start, end), as they stand, as a "may"."""
    first = np.full(len(keys), -1, np.int64)
    for position, text in _windows(keys.longest, read, start, end):
        for group in keys.groups:
            group.search(text, first, position)
    rows = np.flatnonzero(first >= 0)
    rows = rows[np.argsort(first[rows], kind="stable")]
    findings.add(rows, pa.array(first[rows]), certainty=MAY)


def _windows(longest: int, read: Read, start: int, end: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield (position, bytes) that overlap so far that every key is whole in one of them."""
    overlap = max(longest - 1, 0)
    buffer = np.empty(min(max(CHUNK_BYTES, 4 * overlap), end - start), np.uint8)
    while start < end:
        text = buffer[: min(len(buffer), end - start)]
        read(start, text)
        yield start, text
        if start + len(text) == end:
            return
        start += len(text) - overlap


def check_size(file: Any, listed: SearchFile) -> None:
    """Raise LogFormatError kind "changed" unless an open file has the size that it was listed with."""
    size = int(file.size())
    if size != listed.size:
        raise LogFormatError(
            "changed", listed.shown, min(size, listed.size), f"{listed.size} bytes, as listed", f"{size}",
            hint="run the audit again",
        )  # fmt: skip
