"""Steps from whole batches to spans: decompress, transcode magic 0, 1 and 3, decode.

One `BodyLoader` serves one thread: it uses its scratch arrays again for each run of batches, and `soft_bytes` plus one
batch bounds their memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from lastkey.logformat.batches import legacy, sections
from lastkey.logformat.batches import span_kernels as record_kernels
from lastkey.logformat.batches.body_kernels import ONE_BY_ONE, enter_unpacked, lay_bodies, lay_spans
from lastkey.logformat.batches.span_kernels import BODY, MIN_RECORD_SIZE, SPAN
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import CODEC_MASK
from lastkey.logformat.primitives.codec import (
    MANY_A_CALL,
    UNREADABLE,
    BombError,
    Scratch,
    decompress_into,
    read_body,
    unpack_many,
)
from lastkey.logformat.primitives.small_body_kernels import ASK_LIBRARY
from lastkey.logformat.primitives.zstd_kernels import DONE

SOFT_BYTES: Final = 8 << 20  # decompressed bytes worked on at once; tuned: with 32 MiB lz4 and zstd take 3 % longer

_USUAL_RATIO: Final = 8  # most bodies decompress to less
_MANY: Final = np.isin(np.arange(CODEC_MASK + 1), MANY_A_CALL)  # bool[8], by codec


@dataclass(frozen=True)
class Run:
    """Consecutive batches with the spans of the wanted ones. The arrays are valid until the next run is made."""

    first: int  # row of batches[0] among the caller's batches
    batches: np.ndarray  # BATCH[n]
    wanted: np.ndarray  # bool[n]
    bodies: np.ndarray  # BODY[n]; unwanted ones have only base_offset
    spans: np.ndarray  # SPAN[records of the wanted batches]
    raw: np.ndarray  # uint8, the bytes of the file
    scratch: np.ndarray  # uint8, decompressed and transcoded bodies


@dataclass(frozen=True)
class BadBatch:
    """A batch with a body that cannot be read."""

    row: int  # among the caller's batches
    error: LogFormatError


class _Packed(NamedTuple):
    """Compressed bodies, in the order in which they are decompressed."""

    rows: np.ndarray  # int64[m], among the caller's batches
    starts: np.ndarray  # int64[m], in the caller's bytes
    ends: np.ndarray  # int64[m]
    ways: np.ndarray  # int8[m], as in `lay_bodies`


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

    def runs(
        self,
        raw: np.ndarray,
        raw_position: int,
        batches: np.ndarray,
        wanted: np.ndarray,
        path: str,
        *,
        backwards: bool,
        before: int = -1,
    ) -> Iterator[Run]:
        """Yield all of `batches` in runs whose decompressed bodies fit; the last run first if `backwards`.

        raw: uint8, bytes of the file from raw_position on; batches: BATCH[n] within them; wanted: bool[n]; before: last
        offset of the batch before them, -1 if unknown.
        """
        lo, hi = 0, len(batches)
        while lo < hi:
            first, last, n_wrappers = self._load(raw, raw_position, batches, wanted, path, lo, hi, backwards)
            bodies = self._bodies[first - lo : last - lo]
            if n_wrappers:
                _check_first_offsets(batches, wanted, bodies, first, before, path)
            yield self._decode(
                raw, raw_position, batches[first:last], wanted[first:last], bodies, self._scratch.array, path, first
            )
            lo, hi = (lo, first) if backwards else (last, hi)

    def runs_around_damage(
        self,
        raw: np.ndarray,
        raw_position: int,
        batches: np.ndarray,
        wanted: np.ndarray,
        path: str,
        *,
        before: int = -1,
    ) -> Iterator[Run | BadBatch]:
        """Yield runs as `runs` does, first to last, and read on after damage.

        A batch that cannot be read gives a BadBatch, and is then part of a run as not wanted. Each step yields batches,
        tries fewer of them, or gives one up. So the walk ends, whatever position an error names, and a bad batch costs
        about as much as a good one, however many there are.
        """
        wanted = wanted.copy()
        row, step = 0, len(batches)
        while row < len(batches):
            start, end = row, min(row + step, len(batches))
            last = int(batches["last_offset"][start - 1]) if start else before
            try:
                for run in self.runs(
                    raw, raw_position, batches[start:end], wanted[start:end], path, backwards=False, before=last
                ):
                    row += len(run.batches)
                    yield replace(run, first=start + run.first)
                step *= 2
            except LogFormatError as error:
                if end - row > 1:  # the error's position only tells where to try next
                    bad = int(np.searchsorted(batches["position"], error.position, "right")) - 1
                    step = min(max(bad - row, 1), end - row - 1)
                    continue
                if not wanted[row]:
                    raise
                wanted[row] = False
                yield BadBatch(row, error)

    def _load(
        self,
        raw: np.ndarray,
        raw_position: int,
        batches: np.ndarray,
        wanted: np.ndarray,
        path: str,
        lo: int,
        hi: int,
        backwards: bool,
    ) -> tuple[int, int, int]:
        part, need, n = batches[lo:hi], wanted[lo:hi], hi - lo
        bodies = self._bodies = np.empty(n, BODY)
        rows, starts, ends = np.empty((3, n), np.int64)
        ways = np.empty(n, np.int8)
        m, n_v3, n_plain, n_wrappers = lay_bodies(
            part, need, raw_position, _MANY, backwards, bodies, rows, starts, ends, ways
        )
        v3 = np.flatnonzero(need & (part["magic"] == 3)) if n_v3 else rows[:0]
        found = sections.locate(raw, raw_position, part, v3, keys_only=self.keys_only)
        order = rows[:m]
        done = at = held = 0
        if m:
            packed = _Packed(order, starts[:m], ends[:m], ways[:m])
            done, at, held = self._unpack(raw, raw_position, part, bodies, packed, v3, found, path)
        first, last = 0, n
        if done < m:  # only part fits at once: the run ends before the first batch that was not unpacked
            first, last = (int(order[done]) + 1, last) if backwards else (first, int(order[done]))
        if n_plain:
            here = part[first:last]
            no_codec = (here["magic"] < 2) & (here["attributes"] & CODEC_MASK == 0)
            plain = np.flatnonzero(need[first:last] & no_codec) + first
            at = legacy.transcode_plain_batches(raw, raw_position, part, plain, bodies, self._scratch, at, path)
        inside = (v3 >= first) & (v3 < last)
        if inside.any():
            rows = v3[inside]
            ends = sections.write_records(
                raw, self._sections, held, part[rows], found[inside], self._scratch, at, self.max_batch_bytes, path
            )
            bodies["start"][rows], bodies["end"][rows] = np.concatenate([[at], ends[:-1]]), ends
            bodies["in_scratch"][rows] = True
        if 2 * held > self.soft_bytes:  # of a large batch, whose records stand in the scratch now
            self._sections = Scratch()
        return lo + first, lo + last, n_wrappers

    def _unpack(
        self,
        raw: np.ndarray,
        raw_position: int,
        part: np.ndarray,
        bodies: np.ndarray,
        packed: _Packed,
        v3: np.ndarray,
        found: np.ndarray,
        path: str,
    ) -> tuple[int, int, int]:
        """Decompress bodies in their order until the scratch is full; return their number, the bytes in the scratch,
        and those of the sections of magic 3, whose rows are `v3`, with SECTIONS `found`. part: BATCH[n]; bodies:
        BODY[n] of them, updated.
        """
        scratch, limit, n = self._scratch, self.max_batch_bytes, len(packed.rows)
        order, starts, stops, way = packed.rows, packed.starts, packed.ends, packed.ways
        if _USUAL_RATIO * int((stops - starts).sum()) > len(scratch.array):
            scratch.reserve(self.soft_bytes * 9 // 8)  # at once: each growth costs a copy, untouched pages cost nothing
        if len(v3) and (starts < stops).any():
            self._sections.reserve(self.soft_bytes * 9 // 8)
        stored = sections.stored(found)
        ends = np.empty(n, np.int64)
        done = at = held = 0
        while done < n and at + 2 * held < self.soft_bytes:  # sections are held twice, as they are and as records
            others = way[done:] != way[done]
            last = done + int(others.argmax()) if others.any() else n
            stop = self.soft_bytes - 2 * held
            places = raw, starts[done:last], stops[done:last], scratch, at, stop, limit, ends[done:]
            if way[done] != ONE_BY_ONE:
                more, at, status, _ = unpack_many(int(way[done]), *places)
                done += more
                if status == DONE:
                    continue
                if status != ASK_LIBRARY:
                    last = done + 1  # raises the error of this body
            done, at, held = self._unpack_each(
                raw, raw_position, part, bodies, order, done, last, at, held, v3, stored, ends, path
            )
        enter_unpacked(bodies, order[:done], ends)
        sections.set_places(found, stored)
        return done, at, held

    def _unpack_each(
        self,
        raw: np.ndarray,
        raw_position: int,
        part: np.ndarray,
        bodies: np.ndarray,
        order: np.ndarray,
        first: int,
        last: int,
        at: int,
        held: int,
        v3: np.ndarray,
        stored: list[sections.Places],
        ends: np.ndarray,
        path: str,
    ) -> tuple[int, int, int]:
        """Decompress order[first:last] one by one, until the scratch is full; write into `ends` where each ends. Return
        as `_unpack`.

        This is the one Python loop over batches, because the libraries of gzip and snappy take one stream a call; small
        bodies come here only where the kernel leaves them to the library. It takes its values out of the arrays all at
        once before, and puts the results back all at once after.
        """
        view, scratch, limit = raw.data, self._scratch, self.max_batch_bytes
        rows = part[order[first:last]]
        columns = (
            bodies["start"][order[first:last]],
            bodies["end"][order[first:last]],
            rows["position"],
            rows["base_offset"],
            rows["attributes"] & CODEC_MASK,
            rows["magic"],
            np.searchsorted(v3, order[first:last]),
        )
        reached: list[int] = []
        for start, end, position, base, codec, magic, j in zip(*(c.tolist() for c in columns), strict=True):
            if at + 2 * held >= self.soft_bytes:
                break
            if magic == 2:
                try:
                    at += read_body(codec, view[start:end], scratch, at, limit)
                except (BombError, *UNREADABLE):
                    decompress_into(
                        codec, view[start:end], scratch, at, limit, path=path, position=position, base_offset=base
                    )
                    raise
            elif magic == 3:
                held, stored[j] = sections.unpack(
                    view, codec, stored[j], self._sections, held, limit, path=path, position=position, base_offset=base
                )
            else:
                i = int(order[first + len(reached)])
                at = legacy.unpack_wrapper(
                    raw, raw_position, part[i], bodies[i : i + 1], self._inner, scratch, at, limit, path
                )
            reached.append(at)
        ends[first : first + len(reached)] = reached
        return first + len(reached), at, held

    def _decode(
        self,
        raw: np.ndarray,
        raw_position: int,
        batches: np.ndarray,
        wanted: np.ndarray,
        bodies: np.ndarray,
        scratch: np.ndarray,
        path: str,
        first: int,
    ) -> Run:
        n, lying = lay_spans(bodies, wanted)
        if lying >= 0:
            body, batch = bodies[lying], batches[lying]
            raise LogFormatError(
                "count",
                path,
                int(batch["position"]),
                f"at most {int(body['end'] - body['start']) // MIN_RECORD_SIZE} records, by its bytes",
                f"{int(body['n_records'])} in its header",
                base_offset=int(batch["base_offset"]),
            )
        if n > len(self._spans):
            self._spans = np.empty(max(n, 2 * len(self._spans)), SPAN)
        spans = self._spans[:n]
        k0, k1 = self.secret or (0, 0)
        status, row, where = record_kernels.decode_records(
            raw,
            scratch,
            batches,
            bodies,
            wanted,
            np.uint64(k0),
            np.uint64(k1),
            self.secret is not None,
            self._keys,
            spans,
        )
        if status != record_kernels.OK:
            raise _problem(path, raw_position, batches[row], bodies[row], status, where)
        return Run(first, batches, wanted, bodies, spans, raw, scratch)


def _check_first_offsets(
    batches: np.ndarray, wanted: np.ndarray, bodies: np.ndarray, first: int, before: int, path: str
) -> None:
    """Check that compressed batches of magic 0 and 1 begin behind the batch before them. Their headers do not tell.

    bodies: BODY[m] of batches[first : first + m].
    """
    part = slice(first, first + len(bodies))
    wrappers = np.flatnonzero(wanted[part] & (batches["base_offset"][part] < 0))
    previous = np.concatenate([[before], batches["last_offset"]])[part][wrappers]
    begin = bodies["base_offset"][wrappers]
    wrong = np.flatnonzero(begin <= previous)
    if len(wrong):
        batch, i = batches[part][wrappers[wrong[0]]], int(wrong[0])
        raise LogFormatError(
            "offsets",
            path,
            int(batch["position"]),
            f"a first record at offset {int(previous[i]) + 1} or more",
            f"one at {int(begin[i])} in the compressed batch that ends at {int(batch['last_offset'])}",
        )


def _problem(path: str, raw_position: int, batch: np.void, body: np.void, status: int, where: int) -> LogFormatError:
    """Return the error for a status of decode_records; its position is a byte of this batch, never behind it."""
    if status == record_kernels.BAD_COUNT:
        left = int(body["end"]) - where
        return LogFormatError(
            "count",
            path,
            int(batch["position"]),
            f"{int(body['n_records'])} records that fill the batch",
            f"{left} bytes after them" if left else "fewer",
            base_offset=int(batch["base_offset"]),
        )
    kind, expected, found = {
        record_kernels.BAD_VARINT: (
            "varint",
            "a varint of at most 5 (varlong: 10) bytes inside the record",
            "one that is too long, or runs past it",
        ),
        record_kernels.BAD_RECORD: ("record", "fields that fill the record's length", "fields that do not"),
        record_kernels.BAD_OFFSETS: (
            "offsets",
            "offset deltas that rise, up to the batch's last",
            "one that does not rise, or is above it",
        ),
    }[status]
    if body["in_scratch"]:
        position = int(batch["position"])
        found = f"{found}, in the record at byte {where - int(body['start'])} of the decompressed body"
    else:
        position = raw_position + where
    return LogFormatError(kind, path, position, expected, found, base_offset=int(batch["base_offset"]))
