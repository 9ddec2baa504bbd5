"""Choice among copies of segments: the copies that form the log, and the valid range of each.

After a change of leaders the new leader uploads the segment again that it was in, with borders of its own, so copies
overlap. An offset may also be there twice with different records, if an unclean election cut the log. Kafka decides
by leader epochs: at each offset the epoch counts that the newest leader has there. So here:

1. The *lineage* is the leader epochs of the copy with the highest last epoch (of these the one that ends last).
2. A copy counts up to the first offset where its own epochs differ from the lineage. Records after that were lost
   by the cluster, not here. Two copies that end in the same epoch and disagree about earlier epochs are a problem.
3. From the first offset on, the oldest copy that holds the offset is taken up to its end: the one with the lowest last
   epoch. Later offsets come from the oldest copy that has the next offset, and so on; copies that lack objects come
   last. So the files of a segment do not change when a new leader uploads, as in a log directory, and a later run can
   continue. Offsets that no copy holds are a gap, which the listing's readers find as in any log.
4. Where a copy continues another one in its middle, both must hold the same batch before that: the same header, which
   is offset, epoch and checksum, means the same log up to there. Otherwise the copies are a problem.

Pinterest's uploader copies no leader epochs. If its copies overlap, each copy gets the epochs of its own batches. The
lineage then consists of the epochs of the newest leader. Below the first offset of its copy, the lineage has the epochs
of the next older leader, and so on.

Source: RemoteLogManager and RemoteLogLeaderEpochState (Kafka 4.3.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np

from lastkey.logformat import names
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import NO_POSITION, LogFormatError, readable
from lastkey.logformat.layout import BATCH_HEADER
from lastkey.logformat.side_files import checkpoints, offset_index
from lastkey.logformat.storage.regular_files import LogFile
from lastkey.logformat.tiered.contents import Contents
from lastkey.logformat.tiered.objects import EPOCHS, UploadedCopy

_AT_ONCE: Final = 16
_CHUNK_BYTES: Final = 64 << 10
_HINT: Final = "keep the objects of the copy that the cluster reads, and move those of the other one out of the archive"


@dataclass(frozen=True)
class CopyExtent:
    """A copy, and the offsets that it holds."""

    contents: Contents
    last: int  # offset; of an empty log the one before its start
    epochs: tuple[tuple[int, int], ...]  # (epoch, start offset), of its leader up to its end; () unknown

    @property
    def start(self) -> int:
        """Its first offset."""
        return self.contents.copy.start

    @property
    def whole(self) -> bool:
        """True if it lacks no object."""
        return not self.contents.copy.lacks


@dataclass(frozen=True)
class CopyRange:
    """A copy as far as it counts."""

    extent: CopyExtent
    begin: int  # first offset that is taken from it
    stop: int  # first offset that is not any more
    position: int  # position of `begin` in its log
    size: int  # bytes of its log that count

    @property
    def cut(self) -> bool:
        """True if a part of it does not count: its indexes then describe more than that."""
        return self.position > 0 or self.stop <= self.extent.last


@dataclass(frozen=True)
class ChosenCopies:
    """The copies that make up a partition's log."""

    pieces: tuple[CopyRange, ...]  # by offset
    lineage: CopyExtent | None  # the copy whose leader epochs count
    left_out: tuple[Contents, ...]  # with a log that does not count, or not all of it
    orphans: tuple[Contents, ...]  # without a log, where no other copy has their first offset
    notes: tuple[str, ...]


def choose(contents: Sequence[Contents]) -> ChosenCopies:
    """Choose among the copies of a partition. Raise LogFormatError if an object cannot be read, or the choice cannot be
    made.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        logs = [
            c for c, sizes in zip(contents, pool.map(lambda c: c.sizes, contents), strict=True) if names.LOG in sizes
        ]
        extents = list(pool.map(_extent, logs))
    extents = _with_epochs(extents)
    leaders = sorted((e for e in extents if e.epochs), key=lambda e: (e.epochs[-1][0], e.last, e.whole), reverse=True)
    lineage = _lineage(leaders) if leaders else None
    valid = {id(e): _valid_until(e, lineage) for e in extents}
    pieces = list(_chain(extents, valid))
    notes = list(_notes(contents, pieces, extents, valid))
    held = [(p.begin, p.stop) for p in pieces]
    whole = {id(p.extent.contents) for p in pieces if not p.cut}
    left_out = tuple(c for c in logs if id(c) not in whole)
    orphans = [
        c
        for c in contents
        if names.LOG not in c.sizes
        and names.INDEX in c.sizes
        and not any(start <= c.copy.start < stop for start, stop in held)
    ]
    return ChosenCopies(
        tuple(pieces), lineage, left_out, tuple({c.copy.start: c for c in orphans}.values()), tuple(notes)
    )


def _extent(contents: Contents) -> CopyExtent:
    epochs: tuple[tuple[int, int], ...] = ()
    if EPOCHS in contents.sizes:
        try:
            epochs = tuple(checkpoints.read_leader_epochs(contents.read(EPOCHS), f"{contents.copy.name}.{EPOCHS}"))
        except LogFormatError as error:
            if error.kind != "side_file":
                raise
    manifest = contents.manifest
    last = manifest.end_offset if manifest is not None else None
    return CopyExtent(contents, _last_offset(contents) if last is None else last, epochs)


def _with_epochs(extents: Sequence[CopyExtent]) -> list[CopyExtent]:
    """Add leader epochs to copies that have none and overlap others. The epochs are those of their batches."""
    by_start = sorted(extents, key=lambda e: e.start)
    overlapping = {id(e) for one, next_ in pairwise(by_start) if next_.start <= one.last for e in (one, next_)}
    is_bare = [id(e) in overlapping and e.contents.copy.layout == "pinterest" for e in extents]
    return [replace(e, epochs=_epochs(e.contents)) if bare else e for e, bare in zip(extents, is_bare, strict=True)]


def _epochs(contents: Contents) -> tuple[tuple[int, int], ...]:
    """Return (epoch, start offset) by the batches of a log; () if they are older than leader epochs."""
    out: list[tuple[int, int]] = []
    for chunk in LogReader(_CHUNK_BYTES).headers(_log(contents)):
        epochs = chunk.batches["partition_leader_epoch"]
        first = np.flatnonzero(np.diff(epochs, prepend=out[-1][0] if out else -2))
        out += zip(epochs[first].tolist(), chunk.batches["base_offset"][first].tolist(), strict=True)
    return tuple(out) if all(epoch >= 0 for epoch, _ in out) else ()


def _lineage(leaders: Sequence[CopyExtent]) -> CopyExtent:
    """Return the copy of the newest leader, `leaders[0]`. If its epochs come from its batches alone, epochs below its
    first offset come from the next leader with lower ones, and so on.
    """
    newest = leaders[0]
    if newest.contents.copy.layout != "pinterest":
        return newest
    epochs, start = newest.epochs, newest.start
    for leader in leaders[1:]:
        below = tuple(entry for entry in leader.epochs if entry[1] < start and entry[0] <= epochs[0][0])
        if below:
            epochs, start = below + epochs, leader.start
    return replace(newest, epochs=epochs)


def _last_offset(contents: Contents) -> int:
    """Return the last offset of a log, from its last index entry on; of a damaged one, the last before the damage."""
    last = contents.copy.start - 1
    for position in dict.fromkeys((_position_before(contents, names.MAX_OFFSET), 0)):
        try:
            for _, base, until in _batches(contents, position):
                last = max(last, base, until)
        except LogFormatError as error:
            if error.kind == "unreadable":
                raise
            continue  # an index that points nowhere: from the beginning; a damaged log ends here
        break
    return last


def _position_before(contents: Contents, offset: int) -> int:
    """Return the position of a batch that begins before an offset, by the index; 0 without one."""
    if names.INDEX not in contents.sizes:
        return 0
    path = f"{contents.copy.name}.{names.INDEX}"
    try:
        entries = offset_index.read(contents.read(names.INDEX), contents.copy.start, path)
    except LogFormatError as error:
        if error.kind == "unreadable":
            raise
        return 0
    before = entries["position"][(entries["offset"] < offset) & (entries["position"] < contents.sizes[names.LOG])]
    return int(before[-1]) if len(before) else 0


def _log(contents: Contents) -> LogFile:
    return LogFile(lambda: contents.open(names.LOG), f"{contents.copy.name}.{names.LOG}", contents.sizes[names.LOG])


def _batches(contents: Contents, position: int) -> Iterable[tuple[int, int, int]]:
    """Yield (position, base offset, last offset) of the batches from a position on."""
    for chunk in LogReader(_CHUNK_BYTES).headers(_log(contents), position):
        rows = chunk.batches
        yield from zip(
            rows["position"].tolist(), rows["base_offset"].tolist(), rows["last_offset"].tolist(), strict=True
        )


def _epoch_at(epochs: Sequence[tuple[int, int]], offset: int) -> int | None:
    return max((epoch for epoch, start in epochs if start <= offset), default=None)


def _valid_until(extent: CopyExtent, lineage: CopyExtent | None) -> int:
    """Return the last offset up to which the epochs of a copy are those of the lineage."""
    if lineage is None or not extent.epochs or extent is lineage:
        return extent.last
    borders = {start for _, start in (*extent.epochs, *lineage.epochs) if extent.start < start <= extent.last}
    for offset in sorted({extent.start, *borders}):
        own, other = _epoch_at(extent.epochs, offset), _epoch_at(lineage.epochs, offset)
        if other is not None and own is not None and own != other:
            if extent.epochs[-1][0] == lineage.epochs[-1][0] and extent.whole:
                raise _undecided(extent, lineage, f"leader epoch {other} at offset {offset}", f"leader epoch {own}")
            return offset - 1
    return extent.last


def _chain(extents: Sequence[CopyExtent], valid: dict[int, int]) -> Iterable[CopyRange]:
    left = [e for e in extents if valid[id(e)] >= e.start]
    following = 0  # first offset that is not held yet
    before: CopyRange | None = None
    while left := [e for e in left if valid[id(e)] >= following]:
        begin = min(max(e.start, following) for e in left)
        here = [e for e in left if e.start <= begin]
        taken = min(
            here, key=lambda e: (not e.whole, e.epochs[-1][0] if e.epochs else -1, e.last, e.contents.copy.name)
        )
        stop, size = valid[id(taken)] + 1, taken.contents.sizes[names.LOG]
        position, _ = _border(taken, begin) if begin > taken.start else (0, 0)
        end, _ = _border(taken, stop) if stop <= taken.last else (size, 0)
        if position and before is not None and before.stop == begin:
            _check_continues(before, taken)
        before = CopyRange(taken, begin, stop, position, end - position)
        yield before
        following = stop


def _border(extent: CopyExtent, offset: int) -> tuple[int, int]:
    """Return the position of the first batch that reaches an offset, and that of the batch before it. Raise kind
    "overlap" if no batch begins there.
    """
    before = 0
    for at, base, last in _batches(extent.contents, _position_before(extent.contents, offset)):
        if last >= offset:
            if base < offset:
                expected, found = f"a batch that begins at offset {offset}", f"one of offsets {base} to {last}"
                raise _undecided(extent, None, expected, found)
            return at, before
        before = at
    return extent.contents.sizes[names.LOG], before


def _check_continues(piece: CopyRange, after: CopyExtent) -> None:
    """Raise kind "overlap" unless a copy holds the last batch of the piece before it."""
    _, one = _border(piece.extent, piece.stop)
    _, other = _border(after, piece.stop)
    if _header(piece.extent.contents, one) != _header(after.contents, other):
        expected, found = f"the same batch before offset {piece.stop} in both copies", "two different ones"
        raise _undecided(after, piece.extent, expected, found)


def _header(contents: Contents, position: int) -> bytes:
    with readable(f"{contents.copy.name}.{names.LOG}"), contents.open(names.LOG) as file:
        file.seek(position)
        return bytes(file.read(BATCH_HEADER.itemsize))


def _undecided(extent: CopyExtent, other: CopyExtent | None, expected: str, found: str) -> LogFormatError:
    path = f"{extent.contents.copy.name}.{names.LOG}"
    beside = f", beside {other.contents.copy.name}.{names.LOG}" if other is not None else ""
    return LogFormatError("overlap", path, NO_POSITION, expected, f"{found}{beside}", hint=_HINT)


def _notes(
    contents: Sequence[Contents], pieces: Sequence[CopyRange], extents: Sequence[CopyExtent], valid: dict[int, int]
) -> Iterable[str]:
    taken = [p.extent for p in pieces]

    def named(copy: UploadedCopy) -> str:
        return copy.name.rpartition("/")[2]

    for c in contents:
        if c.copy.lacks:
            used = "its log is used" if any(e.contents is c for e in taken) else "left out"
            lost = ", ".join(f".{kind}" for kind in c.copy.lacks)
            yield f"{named(c.copy)}: no {lost}: an upload that did not end, or lost objects; {used}"
    for e in extents:
        if valid[id(e)] < e.last:
            epoch, first = _epoch_at(e.epochs, e.last), valid[id(e)] + 1
            yield (
                f"{named(e.contents.copy)}: offsets {first:,} to {e.last:,} of leader epoch {epoch} left out: later "
                "leaders replaced them"
            )
    later = [p for p in pieces if p.position]
    if later:
        yield (
            f"{len(later):,} copies of segments overlap the ones before, after changes of leaders, and count from "
            f"where those end: the first {named(later[0].extent.contents.copy)} from offset {later[0].begin:,}"
        )
    again = [e for e in extents if all(e is not other for other in taken) and e.whole]
    if again:
        yield (
            f"{len(again):,} copies of segments left out, the first {named(again[0].contents.copy)}: after a change of "
            "leaders the others hold the same offsets"
        )
