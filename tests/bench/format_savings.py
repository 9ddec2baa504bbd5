"""Bytes of each record in magic 2, in magic 3, and after each change on the way, measured by really encoding.

The changes, in this order (FORMAT.md, "Magic 3"): the header's numbers as varints; no attributes of records; no length
of a record; steps and gaps instead of deltas; keys and values apart, in columns. After each one the batches are
encoded and compressed again, so that a change counts what it saves behind the codec. Sums are kept by codec and by
records a batch, for the batches that magic 3 can hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.layout import BATCH_OVERHEAD, CODEC_MASK, CODEC_NAMES
from lastkey.logformat.listing import Segment
from lastkey.logformat.primitives.codec import compress
from lastkey.logformat.writing.formats import Converter
from lastkey.udfs.problem import Problem, attempt
from lastkey.udfs.storage import log_file, open_root
from tests.bench import format_kernels as kernels

CHANGES: Final = ("header", "attributes", "lengths", "steps", "columns")
BATCH_SIZES: Final = (1, 2, 10, 100, 1000, 10_000)  # records a batch: from each on, up to the next one


@dataclass(frozen=True)
class FormatTask:
    """Consecutive segments of a partition."""

    name: str
    segments: tuple[Segment, ...]
    chunk_bytes: int
    max_batch_bytes: int


@dataclass(frozen=True)
class FormatBytes:
    """Sums over batches with one codec and about as many records."""

    codec: str
    from_records: int  # number of records in a batch, one of BATCH_SIZES
    batches: int
    records: int
    bytes: tuple[int, ...]  # in magic 2, and after each of CHANGES: the last is magic 3


@dataclass(frozen=True)
class FormatSavings:
    """Measurements of some segments."""

    rows: tuple[FormatBytes, ...] = ()
    stayed: int = 0  # batches that cannot have magic 3
    problem: Problem | None = None


def measure_formats(task: FormatTask) -> FormatSavings:
    """Measure the batches of some segments; a log that cannot be read is a problem."""
    sums: dict[tuple[int, int], NDArray[np.int64]] = {}
    stayed = 0
    problem: Problem | None = None
    for segment in task.segments:
        done = attempt(segment.path, lambda s=segment: _segment(s, task, sums))  # type: ignore[misc]
        if isinstance(done, Problem):
            problem = problem or done
        else:
            stayed += done
    rows = (
        FormatBytes(CODEC_NAMES[codec], BATCH_SIZES[at], int(counts[0]), int(counts[1]), tuple(counts[2:].tolist()))
        for (codec, at), counts in sorted(sums.items())
    )
    return FormatSavings(tuple(rows), stayed, problem)


def merged(parts: Iterable[FormatSavings]) -> FormatSavings:
    """Return the sums of several measurements."""
    sums: dict[tuple[str, int], NDArray[np.int64]] = {}
    stayed = 0
    for part in parts:
        stayed += part.stayed
        for row in part.rows:
            key, rows_of_sums = (row.codec, row.from_records), np.array([row.batches, row.records, *row.bytes])
            sums[key] = sums.get(key, 0) + rows_of_sums
    order = sorted(sums.items(), key=lambda item: (CODEC_NAMES.index(item[0][0]), item[0][1]))
    rows = (FormatBytes(*key, int(s[0]), int(s[1]), tuple(s[2:].tolist())) for key, s in order)
    return FormatSavings(tuple(rows), stayed)


def _segment(segment: Segment, task: FormatTask, sums: dict[tuple[int, int], NDArray[np.int64]]) -> int:
    """Add a segment's batches to the sums; return how many stay in magic 2."""
    reader = LogReader(task.chunk_bytes, task.max_batch_bytes)
    converter = Converter(3, max_batch_bytes=task.max_batch_bytes)
    stayed = 0
    for chunk in reader.chunks(log_file(open_root(segment.root), segment.path, segment.size_bytes)):
        parts = list(converter.convert(chunk))
        which = np.concatenate([part.changed for part in parts])
        sizes = np.concatenate([part.sizes for part in parts])
        which |= chunk.batches["magic"] == 3
        stayed += int((~which).sum())
        for run in reader.runs(chunk, which):
            _add(sums, run, sizes[run.first : run.first + len(run.batches)])
    return stayed


def _add(sums: dict[tuple[int, int], NDArray[np.int64]], run: Run, sizes: NDArray[np.int64]) -> None:
    which = run.wanted
    n = run.batches["records_count"][which].astype(np.int64)
    codecs = (run.batches["attributes"] & CODEC_MASK)[which]
    headers = np.empty(len(which), np.int64)
    kernels.header_sizes(run.batches, headers)
    headers = headers[which]
    counts = np.empty((len(n), 2 + len(CHANGES) + 1), np.int64)
    counts[:, 0], counts[:, 1] = 1, n
    counts[:, 2] = BATCH_OVERHEAD + _stored(_bodies(run), codecs)
    counts[:, 3] = headers + counts[:, 2] - BATCH_OVERHEAD
    room = np.empty(int((run.bodies["end"] - run.bodies["start"])[which].sum() + 10 * n.sum()), np.uint8)
    ends = np.empty(len(which), np.int64)
    for column, step in enumerate((kernels.NO_ATTRIBUTES, kernels.NO_LENGTH, kernels.STEPS), 4):
        kernels.encode_rows(run, step, room, ends)
        of = ends[which]
        starts = np.concatenate([[0], of[:-1]])
        encoded = (room[a:b] for a, b in zip(starts.tolist(), of.tolist(), strict=True))
        counts[:, column] = headers + _stored(encoded, codecs)
    counts[:, -1] = sizes[which]
    sizes_at = np.searchsorted(BATCH_SIZES, np.maximum(n, 1), "right") - 1
    for codec in np.unique(codecs).tolist():
        for at in np.unique(sizes_at[codecs == codec]).tolist():
            total = counts[(codecs == codec) & (sizes_at == at)].sum(axis=0)
            sums[codec, at] = sums.get((codec, at), 0) + total


def _bodies(run: Run) -> Iterator[NDArray[np.uint8]]:
    """Yield the records of each wanted batch in the magic 2 encoding."""
    for body in run.bodies[run.wanted]:
        array = run.scratch if body["in_scratch"] else run.raw
        yield array[body["start"] : body["end"]]


def _stored(bodies: Iterable[NDArray[np.uint8]], codecs: NDArray[np.int16]) -> NDArray[np.int64]:
    """Return the bytes of each body as stored. This is a loop over batches, because codecs take one stream a call."""
    return np.array(
        [
            len(compress(codec, body)) if codec and len(body) else len(body)
            for codec, body in zip(codecs.tolist(), bodies, strict=True)
        ],
        np.int64,
    )
