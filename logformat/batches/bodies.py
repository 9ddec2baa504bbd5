"""Steps from whole batches to spans: decompress, transcode magic 0, 1 and 3, decode.

One `BodyLoader` serves one thread: it uses its scratch arrays again for each run of batches, and `soft_bytes` plus one
batch bounds their memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lastkey.logformat.batches import legacy, sections
from lastkey.logformat.batches import span_kernels as record_kernels
from lastkey.logformat.batches.body_kernels import ONE_BY_ONE, enter_unpacked, lay_bodies, lay_spans
from lastkey.logformat.batches.chunks import Chunk
from lastkey.logformat.batches.span_kernels import BODY, MIN_RECORD_SIZE, SPAN, Run
from lastkey.logformat.errors import LogFormatError, batch_error
from lastkey.logformat.layout import CODEC_MASK
from lastkey.logformat.primitives.codec import (
    MANY_A_CALL,
    UNREADABLE,
    BatchPlace,
    BombError,
    Scratch,
    decompress_into,
    read_body,
    unpack_many,
)
from lastkey.logformat.primitives.small_body_kernels import ASK_LIBRARY
from lastkey.logformat.primitives.zstd_kernels import DONE

SOFT_BYTES: Final = 8 << 20  # decompressed bytes worked on at once; tuned: with 32 MiB lz4 and zstd take 3 % longer

# status of decode_records -> kind, expected, found
_PROBLEMS: Final = {
    record_kernels.BAD_VARINT: (
        "varint", "a varint of at most 5 (varlong: 10) bytes inside the record",
        "one that is too long, or runs past it",
    ),
    record_kernels.BAD_RECORD: ("record", "fields that fill the record's length", "fields that do not"),
    record_kernels.BAD_OFFSETS: (
        "offsets", "offset deltas that rise, up to the batch's last", "one that does not rise, or is above it",
    ),
}  # fmt: skip
_USUAL_RATIO: Final = 8  # most bodies decompress to less
_MANY: Final = np.isin(np.arange(CODEC_MASK + 1), MANY_A_CALL)  # bool[8], by codec


@dataclass(frozen=True)
class BadBatch:
    """A batch with a body that cannot be read."""

    row: int  # among the caller's batches
    error: LogFormatError


@dataclass
class _Packed:
    """Compressed bodies of batches, in the order in which they are decompressed, and how far that has come."""

    chunk: Chunk  # chunk with these batches
    bodies: np.ndarray  # BODY[n] of all of them
    rows: np.ndarray  # int64[m], of the compressed ones
    starts: np.ndarray  # int64[m], in the chunk's bytes
    stops: np.ndarray  # int64[m]
    ways: np.ndarray  # int8[m], as in `lay_bodies`
    ends: np.ndarray  # int64[m], written: where each ends in the scratch
    v3: np.ndarray  # int64[k], rows of the batches of magic 3
    stored: list[sections.Places]  # sections of the batches of magic 3
    done: int = 0  # bodies
    at: int = 0  # bytes in the scratch
    held: int = 0  # bytes of the sections of magic 3


class BodyLoader:
    """Scratch arrays for the bodies of batches, and their limits."""

    def __init__(
        self,
        *,
        max_batch_bytes: int,
        soft_bytes: int = SOFT_BYTES,
        secret: tuple[int, int] | None = None,
        keys_only: bool = False,
    ) -> None:
        """Refuse batches that decompress to more than max_batch_bytes, and hash keys with the SipHash key `secret`.

        keys_only: the caller looks at no value (but whether it is null), no header, no record's size or place. A format
        that keeps them apart, magic 3, then leaves them compressed, and the values come out empty.
        """
        self.max_batch_bytes = max_batch_bytes
        self.soft_bytes = soft_bytes
        self.secret = secret
        self.keys_only = keys_only
        self._scratch = Scratch()
        self._inner = Scratch()
        self._sections = Scratch()
        self._spans = np.empty(1 << 12, SPAN)
        self._keys = record_kernels.room_for_keys()

    def runs(self, chunk: Chunk, wanted: np.ndarray | None = None, *, backwards: bool = False) -> Iterator[Run]:
        """Yield all batches of a chunk in runs whose decompressed bodies fit; the last run first if `backwards`.

        wanted: bool[n], the batches whose records are decoded; None: all.
        """
        wanted = np.ones(len(chunk.batches), np.bool_) if wanted is None else wanted
        lo, hi = 0, len(chunk.batches)
        while lo < hi:
            run = self._load(chunk, wanted, lo, hi, backwards)
            yield run
            lo, hi = (lo, run.first) if backwards else (run.first + len(run.batches), hi)

    def runs_around_damage(self, chunk: Chunk, wanted: np.ndarray | None = None) -> Iterator[Run | BadBatch]:
        """Yield runs as `runs` does, first to last, and read on after damage.

        A batch that cannot be read gives a BadBatch, and is then part of a run as not wanted. Each step yields batches,
        tries fewer batches, or skips one. So the walk ends for any position in an error, and the cost of a damaged
        batch is about that of an intact one.
        """
        batches = chunk.batches
        wanted = np.ones(len(batches), np.bool_) if wanted is None else wanted.copy()
        row, step = 0, len(batches)
        while row < len(batches):
            start, end = row, min(row + step, len(batches))
            last = int(batches["last_offset"][start - 1]) if start else chunk.before
            try:
                for run in self.runs(replace(chunk, batches=batches[start:end], before=last), wanted[start:end]):
                    row += len(run.batches)
                    yield run._replace(first=start + run.first)
                step *= 2
            except LogFormatError as error:
                if end - row > 1:  # the error's position only shows where to try next
                    bad = int(np.searchsorted(batches["position"], error.position, "right")) - 1
                    step = min(max(bad - row, 1), end - row - 1)
                    continue
                if not wanted[row]:
                    raise
                wanted[row] = False
                yield BadBatch(row, error)

    def _load(self, chunk: Chunk, wanted: np.ndarray, lo: int, hi: int, backwards: bool) -> Run:
        """Return a run from the beginning, or the end, of the batches [lo, hi)."""
        part, need, n = replace(chunk, batches=chunk.batches[lo:hi]), wanted[lo:hi], hi - lo
        batches, bodies = part.batches, np.empty(n, BODY)
        rows, starts, stops = np.empty((3, n), np.int64)
        ways = np.empty(n, np.int8)
        m, n_v3, n_plain, n_wrappers = lay_bodies(
            batches, need, chunk.position, _MANY, backwards, bodies, rows, starts, stops, ways
        )
        v3 = np.flatnonzero(need & (batches["magic"] == 3)) if n_v3 else rows[:0]
        section_places = sections.locate(part, v3, keys_only=self.keys_only)
        packed = _Packed(
            part,
            bodies,
            rows[:m],
            starts[:m],
            stops[:m],
            ways[:m],
            np.empty(m, np.int64),
            v3,
            sections.stored(section_places),
        )
        if m:
            self._unpack(packed)
            sections.set_places(section_places, packed.stored)
        first, last = 0, n
        if packed.done < m:  # only part fits at once: the run ends before the first batch that was not unpacked
            border = int(rows[packed.done])
            first, last = (border + 1, last) if backwards else (first, border)
        if n_plain:
            here = batches[first:last]
            no_codec = (here["magic"] < 2) & (here["attributes"] & CODEC_MASK == 0)
            plain = np.flatnonzero(need[first:last] & no_codec) + first
            packed.at = legacy.transcode_plain(part, plain, bodies, self._scratch, packed.at)
        inside = (v3 >= first) & (v3 < last)
        if inside.any():
            rows = v3[inside]
            whole = replace(part, batches=batches[rows])
            unpacked = sections.Unpacked(self._sections, packed.held, section_places[inside])
            ends = sections.write_records(whole, unpacked, self._scratch, packed.at, self.max_batch_bytes)
            bodies["start"][rows], bodies["end"][rows] = np.concatenate([[packed.at], ends[:-1]]), ends
            bodies["in_scratch"][rows] = True
        if 2 * packed.held > self.soft_bytes:  # a large batch, whose records are in the scratch
            self._sections = Scratch()
        first, last, bodies = lo + first, lo + last, bodies[first:last]
        if n_wrappers:
            _check_first_offsets(chunk, wanted, bodies, first)
        return self._decode(chunk, first, wanted[first:last], bodies)

    def _unpack(self, packed: _Packed) -> None:
        """Decompress bodies in their order until the scratch is full."""
        scratch, n, order, way = self._scratch, len(packed.rows), packed.rows, packed.ways
        if _USUAL_RATIO * int((packed.stops - packed.starts).sum()) > len(scratch.array):
            scratch.reserve(self.soft_bytes * 9 // 8)  # at once: each growth costs a copy, untouched pages are free
        if len(packed.v3) and (packed.starts < packed.stops).any():
            self._sections.reserve(self.soft_bytes * 9 // 8)
        while (done := packed.done) < n and self._has_room(packed):
            others = way[done:] != way[done]
            last = done + int(others.argmax()) if others.any() else n
            if way[done] != ONE_BY_ONE:
                bodies = packed.chunk.raw, packed.starts[done:last], packed.stops[done:last]
                stop, limit = self.soft_bytes - 2 * packed.held, self.max_batch_bytes
                more, packed.at, status, _ = unpack_many(
                    int(way[done]), *bodies, scratch, packed.at, stop, limit, packed.ends[done:]
                )
                packed.done += more
                if status == DONE:
                    continue
                if status != ASK_LIBRARY:
                    last = packed.done + 1  # raises the error of this body
            self._unpack_each(packed, last)
        enter_unpacked(packed.bodies, order[: packed.done], packed.ends)

    def _has_room(self, packed: _Packed) -> bool:
        """Return whether the scratch takes more; sections are held twice, as they are and as records."""
        return packed.at + 2 * packed.held < self.soft_bytes

    def _unpack_each(self, packed: _Packed, last: int) -> None:
        """Decompress the next bodies one by one, up to number `last`, until the scratch is full.

        This is the one Python loop over batches, because the libraries of gzip and snappy take one stream a call; small
        bodies come here only where the kernel leaves them to the library. It converts the arrays to lists before the
        loop and writes the results back after it.
        """
        chunk, scratch, limit, first = packed.chunk, self._scratch, self.max_batch_bytes, packed.done
        view, rows = chunk.raw.data, chunk.batches[order := packed.rows[first:last]]
        columns = (
            order,
            packed.bodies["start"][order],
            packed.bodies["end"][order],
            rows["position"],
            rows["base_offset"],
            rows["attributes"] & CODEC_MASK,
            rows["magic"],
            np.searchsorted(packed.v3, order),
        )
        reached: list[int] = []
        for row, start, end, position, base, codec, magic, j in zip(*(c.tolist() for c in columns), strict=True):
            if not self._has_room(packed):
                break
            place = BatchPlace(chunk.path, position, base, magic)
            if magic == 2:
                try:
                    packed.at += read_body(codec, view[start:end], scratch, packed.at, limit)
                except (BombError, *UNREADABLE):
                    decompress_into(codec, view[start:end], scratch, packed.at, limit, place)
                    raise
            elif magic == 3:
                packed.held, packed.stored[j] = sections.unpack(
                    view, codec, packed.stored[j], self._sections, packed.held, limit, place
                )
            else:
                batch, body = chunk.batches[row], packed.bodies[row : row + 1]
                records = legacy.transcode_wrapper(chunk, batch, self._inner, scratch, packed.at, limit)
                body["n_records"], body["base_offset"], body["base_timestamp"] = *records[1:3], 0
                packed.at += records.n_bytes
            reached.append(packed.at)
        packed.ends[first : first + len(reached)] = reached
        packed.done = first + len(reached)

    def _decode(self, chunk: Chunk, first: int, wanted: np.ndarray, bodies: np.ndarray) -> Run:
        """Return the run of the batches from row `first` on, whose bodies, BODY[n], are where they can be decoded."""
        batches = chunk.batches[first : first + len(bodies)]
        n, lying = lay_spans(bodies, wanted)
        if lying >= 0:
            body, batch = bodies[lying], batches[lying]
            expected = f"at most {int(body['end'] - body['start']) // MIN_RECORD_SIZE} records, by its bytes"
            raise batch_error("count", chunk.path, batch, expected, f"{int(body['n_records'])} in its header")
        if n > len(self._spans):
            self._spans = np.empty(max(n, 2 * len(self._spans)), SPAN)
        run = Run(first, batches, wanted, bodies, self._spans[:n], chunk.raw, self._scratch.array)
        k0, k1 = self.secret or (0, 0)
        status, row, where = record_kernels.decode_records(
            run, np.uint64(k0), np.uint64(k1), self.secret is not None, self._keys
        )
        if status != record_kernels.OK:
            raise _problem(chunk, batches[row], bodies[row], status, where)
        return run


def _check_first_offsets(chunk: Chunk, wanted: np.ndarray, bodies: np.ndarray, first: int) -> None:
    """Check that compressed batches of magic 0 and 1 begin after the batch before them. Their headers do not show it.

    bodies: BODY[m] of the chunk's batches from row `first` on; wanted: bool[n] of all.
    """
    batches, part = chunk.batches, slice(first, first + len(bodies))
    wrappers = np.flatnonzero(wanted[part] & (batches["base_offset"][part] < 0))
    previous = np.concatenate([[chunk.before], batches["last_offset"]])[part][wrappers]
    begin = bodies["base_offset"][wrappers]
    wrong = np.flatnonzero(begin <= previous)
    if len(wrong):
        batch, i = batches[part][wrappers[wrong[0]]], int(wrong[0])  # without a base offset
        found = f"one at {int(begin[i])} in the compressed batch that ends at {int(batch['last_offset'])}"
        raise batch_error(
            "offsets", chunk.path, batch, f"a first record at offset {int(previous[i]) + 1} or more", found
        )


def _problem(chunk: Chunk, batch: np.void, body: np.void, status: int, where: int) -> LogFormatError:
    """Return the error for a status of decode_records; its position is a byte of this batch, never after it."""
    path = chunk.path
    if status == record_kernels.BAD_COUNT:
        left, expected = int(body["end"]) - where, f"{int(body['n_records'])} records that fill the batch"
        return batch_error("count", path, batch, expected, f"{left} bytes after them" if left else "fewer")
    kind, expected, found = _PROBLEMS[status]
    if body["in_scratch"]:
        found = f"{found}, in the record at byte {where - int(body['start'])} of the decompressed body"
        return batch_error(kind, path, batch, expected, found)
    base_offset = int(batch["base_offset"])
    return LogFormatError(kind, path, chunk.position + where, expected, found, base_offset=base_offset)
