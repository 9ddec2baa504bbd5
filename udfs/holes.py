"""Offsets that no segment holds: a hole that a cleaner made is valid; a missing or short file is a gap.

A leader writes without holes. Each batch begins where the previous batch ends, and each segment where the previous
segment ends. A batch holds a record for each of its offsets. Only a cleaner makes holes, and it cleans a log from its
start on. So:

  a hole below the cleaner checkpoint                a cleaner made it: no finding
  above, with a cleaner's work beside or above it    a cleaner made it too: the checkpoint is lost, or this is a replica
                                                     that was filled from a cleaned leader
  above, without                                     a file is missing, empty, or cut at a batch border: a gap

"A cleaner's work" is one of three: a batch with fewer records than offsets; a batch with a first offset above the end
of the previous batch; a batch with a delete horizon, which only a cleaner sets. Above a hole, it shows that the cleaner
has passed the hole. In the segment that ends at the hole, it shows that the cleaner may have removed the end of that
segment too. (Kafka before 4.0, and again from 4.4 on, does not keep the last batch of a cleaned range; KAFKA.md,
"Versions".)

No other evidence exists. A cleaner may have removed only whole batches at a segment border, and its checkpoint may be
lost. Then the bytes equal those of a log with a missing file. Producer sequences do not show the cause: they continue
over the hole, or jump, in both cases. Such a hole is reported as a gap too, with a message that a cleaner may have made
it.

A hole is a gap anywhere if a file shows that records existed: an index without its log, or an index whose last entry is
after the end of its log. The same holds after the last segment, where a producer snapshot is evidence too. It also
holds below the first segment, where the first leader epoch shows where the log began.

Compaction (`udfs.compact.scan.scan_partition`) and all readers of an archive share this rule. `udfs.verify` has
code of its own for it, and tests compare the two. A reader checks only the holes within the wanted offsets. It sees a
segment's end anyway; it reads the headers above a hole only if the checkpoint does not explain the hole.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from lastkey.logformat import names
from lastkey.logformat.batches.chunks import NO_END
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import LogFormatError, unless_unreadable
from lastkey.logformat.listing import Segment
from lastkey.logformat.search.segment_search import SearchableSegment
from lastkey.logformat.side_files import offset_index, time_index
from lastkey.udfs.hole_kernels import last_thinned
from lastkey.udfs.problem import Problem, gap
from lastkey.udfs.segments import Behind, ListedLog, Traces
from lastkey.udfs.storage import cached_place, cached_root, log_file, read_file

NOT_KNOWN: Final = -2  # end of the batch before the first one read
ACCEPT_HINT: Final = (
    'bring the missing file back; or --set gaps=accept (the setting gaps = "accept") if it is known to be lost'
)
_MAYBE_CLEANED: Final = (
    "a file is missing; or, if this topic was ever compacted, a cleaner removed whole batches at this border and its "
    "checkpoint is lost, which leaves the same bytes"
)
_BUFFER_BYTES: Final = 1 << 20


Log = Segment | ListedLog
LogsAbove = Callable[[], Iterable[Log]]


@dataclass(frozen=True)
class Hole:
    """Offsets first..last between two segments."""

    first: int
    last: int
    path: str  # path of the segment that ends there
    position: int  # position of its end
    indexed_end: int  # 1 + the largest offset after its end that its own indexes name; 0: they name none
    after: str  # path of the next segment


def missing(hole: Hole, orphan: str | None, cleaned: Callable[[], bool], hint: str) -> Problem | None:
    """Return why a hole between two segments is a gap; None: a cleaner made it. orphan: an index in the hole, without
    log.
    """
    if orphan is not None:
        return gap(orphan, f"the .log of this index, with offsets {hole.first} to {hole.last}", "none", hint)
    if hole.indexed_end:
        return gap(
            hole.path,
            f"batches up to offset {hole.indexed_end - 1}, as its index says",
            f"the end of the file after offset {hole.first - 1}",
            hint,
            hole.position,
        )
    if cleaned():
        return None
    return gap(
        hole.after,
        f"a segment that begins at offset {hole.first}, where {hole.path} ends",
        f"one that begins at {hole.last + 1}, and no sign that a cleaner removed the offsets between",
        f"{_MAYBE_CLEANED}: {hint}",
    )


def missing_below(first: int, last: int, orphan: str | None, epochs: str, hint: str) -> Problem:
    """Return why offsets below the first segment are a gap: an index without its log, or the first leader epoch."""
    if orphan is not None:
        return gap(orphan, f"the .log of this index, with offsets {first} to {last}", "none", hint)
    return gap(
        epochs,
        f"a log from offset {first} on, where its first leader epoch begins, or a log start checkpoint",
        f"a first segment at {last + 1}",
        f"if remote storage has the beginning, put its folder into the archive; else {hint}",
    )


def indexed_end(segment: Segment, end_position: int, end_offset: int, next_base_offset: int) -> int:
    """Return 1 + the largest offset after the end of a `.log` that its indexes name; 0 if they name none.

    Entries at or above the next segment's base do not count: they are torn or belong to another log.
    """
    root, base, offsets = cached_root(segment.beside), segment.base_offset, [-1]
    if segment.index is not None:
        with unless_unreadable():
            entries = offset_index.read(read_file(root, segment.index, segment.size_bytes), base, segment.index)
            offsets += entries["offset"][entries["position"] >= end_position][-1:].tolist()
    if segment.time_index is not None:
        with unless_unreadable():
            entries = time_index.read(read_file(root, segment.time_index, segment.size_bytes), base, segment.time_index)
            offsets += entries["offset"][-1:].tolist()
    return max((o + 1 for o in offsets if end_offset <= o < next_base_offset), default=0)


def thinned_offset(batches: np.ndarray, previous_last_offset: int) -> int:
    """Return the last offset of the last of BATCH[n] that shows a cleaner's work; -1 if none does.

    Such a batch holds fewer records than offsets, begins above the end of the one before it, or has a delete horizon.
    previous_last_offset: of the batch before the first one, or the segment's base - 1; NOT_KNOWN. A compressed batch of
    magic 0 or 1 is no evidence, because its header does not state where it begins.
    """
    return int(last_thinned(batches, previous_last_offset, NOT_KNOWN))


def offsets_behind(segments: Sequence[Segment], traces: Traces, number: int) -> Behind:
    """Return the listing's facts about the offsets after segments[number]. segments: by base offset."""
    segment = segments[number]
    after = segments[number + 1].base_offset if number + 1 < len(segments) else None
    named = list(_between(traces.orphans, segment.base_offset, NO_END if after is None else after))
    if after is None:
        named += [(offset - 1, path) for offset, path in _between(traces.snapshots, segment.base_offset, NO_END)]
    return Behind(segment, after, traces.cleaned_until, traces.log_start, tuple(sorted(named)))


def _between(files: Sequence[tuple[int, str]], first: int, end: int) -> Sequence[tuple[int, str]]:
    return files[bisect_left(files, (first, "")) : bisect_left(files, (end, ""))]


class GapFinder:
    """Finder of gaps in logs that are read. A log may have many holes, so it remembers where a cleaner's work is."""

    def __init__(self, hint: str) -> None:
        self.hint = hint
        self._worked: dict[str, int] = {}  # by folder: offset that a cleaner is known to have reached
        self._untouched: dict[str, int] = {}  # by folder: offset above which no batch shows a cleaner's work

    def below(self, segments: Sequence[Segment], traces: Traces) -> Problem | None:
        """Return the gap in front of the first segment; None without a gap."""
        first = segments[0].base_offset if segments else 0
        begins = [offset for offset, _ in traces.orphans[:1]]
        begins += [traces.first_epoch[0]] if traces.first_epoch is not None else []
        begins += [0] if traces.begins_elsewhere else []
        low = max(min(begins, default=first), traces.log_start)
        if low >= first:
            return None
        orphan = next((path for _, path in _between(traces.orphans, low, first)), None)
        epochs = traces.first_epoch[1] if traces.first_epoch is not None else ""
        root = segments[0].root
        if traces.begins_elsewhere and orphan is None:
            expected, found = f"a segment at offset {low}", f"a first segment at {first}; the topic has tiered storage"
            hint = f"put the folder of the remote storage into the archive; or ask for offsets from {first} on"
            return gap(f"{root}/{segments[0].path}", expected, found, hint)
        return missing_below(low, first - 1, _shown(root, orphan), _shown(root, epochs) or "", self.hint)

    def behind(self, place: Behind, end: int, start: int, until: int, above: LogsAbove) -> Problem | None:
        """Return the gap after a segment; None without a gap, or if it holds none of the offsets [start, until).

        end: offset after the segment's last batch; above: lists the logs after that segment, called only for a hole.
        """
        segment, after = place.segment, place.next_base_offset
        path = f"{segment.root}/{segment.path}"
        named = [(offset, file) for offset, file in place.named if offset >= end]
        if after is None:
            if not named or until <= max(start, end):
                return None
            offset, file = named[-1]
            expected = f"a log that holds offset {offset}, as this file shows"
            return gap(f"{segment.root}/{file}", expected, f"one that ends at {end}", self.hint)
        if max(start, end, place.log_start) >= min(until, after):
            return None
        lawful = max(place.log_start, place.cleaned_until)
        hole = Hole(
            max(end, lawful) if lawful < after else end,
            after - 1,
            path,
            segment.size_bytes,
            indexed_end(segment, segment.size_bytes, end, after),
            f"{path.rpartition('/')[0]}/{names.segment_file(after, names.LOG)}",
        )

        def cleaned() -> bool:
            return min(until, after) <= place.cleaned_until or self._is_cleaned(place, after, above)

        if hole.indexed_end:
            hole = replace(hole, first=end)
        return missing(hole, _shown(segment.root, named[0][1]) if named else None, cleaned, self.hint)

    def _is_cleaned(self, place: Behind, after: int, above: LogsAbove) -> bool:
        """Return whether a log above a hole that ends at `after`, or the segment before it, shows a cleaner's work."""
        folder = f"{place.segment.root}/{place.segment.path}".rpartition("/")[0]
        if self._worked.get(folder, -1) >= after:
            return True
        if self._untouched.get(folder, NO_END) > after:
            for log in above():
                found = _first_thinned(log, 0)
                if found >= 0:
                    self._worked[folder] = found
                    return True
            self._untouched[folder] = after
        return _first_thinned(place.segment, place.cleaned_until) >= 0


def _shown(root: str, path: str | None) -> str | None:
    return f"{root}/{path}" if path else None


def _first_thinned(log: Log, at_least: int) -> int:
    """Return an offset from `at_least` on at which a `.log` shows a cleaner's work; -1 if no readable part does."""
    parsed = names.parse_segment_file(log.path.rpartition("/")[2])
    previous = parsed.base - 1 if parsed is not None else NOT_KNOWN
    try:
        for chunk in LogReader(_BUFFER_BYTES).headers(log_file(cached_root(log.root), log.path, log.size_bytes)):
            found = thinned_offset(chunk.batches, previous)
            if found >= at_least:
                return found
            previous = chunk.last_offset
    except LogFormatError:
        pass  # the task that reads this log reports the damage
    return -1


def gaps_between(
    segments: Sequence[Segment], traces: Traces, start: int, until: int, finder: GapFinder
) -> Iterator[Problem]:
    """Yield a log's gaps within the offsets [start, until); reads the ends of the segments there.

    Raises LogFormatError for damage on the way.
    """
    below = finder.below(segments, traces)
    first = segments[0].base_offset if segments else 0
    if below is not None and start < first:
        yield below
    for number, segment in enumerate(segments):
        place = offsets_behind(segments, traces, number)
        after = place.next_base_offset
        if segment.base_offset >= until or (after is not None and after <= max(start, traces.log_start)):
            continue
        end = SearchableSegment(segment, lambda _: None, cached_place).next_offset()
        problem = finder.behind(place, end, start, until, lambda n=number: segments[n + 1 :])  # type: ignore[misc]
        if problem is not None:
            yield problem
