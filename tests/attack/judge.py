"""The judge of a job on a damaged archive: it compares the output with that of the undamaged archive, and with slow
readers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import numpy as np

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH_HEADER
from lastkey.logformat.side_files import producer_snapshot
from tests.attack.damages import Case, damaged, is_noticed
from tests.attack.forked import Failed
from tests.attack.readers import Seen, check_named
from tests.attack.specimens import Specimen, put, unpack
from tests.builders.folders import load
from tests.builders.trees import read_tree
from tests.reference import v3
from tests.reference.any_magic import decode_any
from tests.reference.cleaner import Segment, Settings, clean
from tests.reference.legacy import sized
from tests.reference.log import GZIP, LZ4, Batch, compress
from tests.reference.producer_state import State

NAMED, EQUAL, TWIN, REPORTED = (
    "reported as problems", "with the output of the undamaged log", "with the output of the reference decoder",
    "with another report",
)  # fmt: skip
VERDICTS: Final = (NAMED, EQUAL, TWIN, REPORTED)
Row = tuple[int, int, bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]]


class Judge:
    """One job and all specimens. Archives lie in folders of their own, and are restored after each case."""

    def __init__(self, job: str, run: Callable[[Path, Path], Seen], specimens: dict[str, Specimen], work: Path) -> None:
        self.job, self.run, self.specimens, self.work = job, run, specimens, work
        self.healthy: dict[str, Any] = {}
        for name, specimen in specimens.items():
            put(specimen.files, work / "archives" / name)
            seen = run(work / "archives" / name, work)
            assert not seen.problems, f"{name}: {seen.problems}"
            self.healthy[name] = self.comparable(seen)

    def verdict(self, case: Case) -> str:
        """Run a case; return one of VERDICTS. Raises Failed."""
        specimen = self.specimens[case.specimen]
        root = self.work / "archives" / case.specimen
        changes = damaged(specimen, case)
        before = {path: data for path, data in (specimen.files | changes).items() if data is not None}
        for path, data in changes.items():
            if data is None:
                (root / path).unlink()
            else:
                put({path: data}, root)
        try:
            seen = self.run(root, self.work)
            if read_tree(root) != before:
                raise Failed("the archive changed")
            return self._judged(case, specimen, before, seen)
        finally:
            put({path: specimen.files[path] for path in changes}, root)

    def _says_invalid(self, seen: Seen) -> bool:
        """Return whether the job reports no problem for a wrong checksum: some jobs read headers without checking it,
        and inspect prints it.
        """
        return self.job in ("lookup", "time index") or (
            self.job == "inspect" and b"isvalid: false" in seen.output[0][0]
        )

    def comparable(self, seen: Seen) -> Any:
        return records_of_outcome(seen) if seen.outcome is not None else seen.output

    def _judged(self, case: Case, specimen: Specimen, files: dict[str, bytes], seen: Seen) -> str:
        check_named(seen.problems)
        output = self.comparable(seen)
        healthy = self.healthy[case.specimen]
        if self.job.startswith("data source"):
            self._check_sources(case, specimen, files, seen)
        if seen.problems:
            return NAMED
        if is_noticed(specimen, case) and not self._says_invalid(seen):
            raise Failed("a wrong checksum, and nothing is said of it")
        if output == healthy:
            return EQUAL
        if seen.outcome is not None:
            expected = cleaned_by_the_twin(files, seen)
            if output not in expected:
                raise Failed(difference("cleaned", output, expected[0], healthy))
            return TWIN
        if self.job.startswith("restore") and any(output[p] != healthy[p] for p in healthy if p.endswith(".log")):
            raise Failed("a log that is not what the manifest says was copied")
        return TWIN if self.job.startswith("data source") else REPORTED

    def _check_sources(self, case: Case, specimen: Specimen, files: dict[str, bytes], seen: Seen) -> None:
        """Check that rows are those of the undamaged archive, or the twin's, and that no row of an undamaged segment is
        missing.
        """
        healthy = self.healthy[case.specimen]
        if "records" not in seen.output:
            return
        rows = [to_row(row) for row in seen.output["records"] if row["offset"] is not None]
        whole = [to_row(row) for row in healthy["records"]]
        if rows == whole:
            return
        if not case.path.endswith(".log"):
            raise Failed(difference("records read, of a side file that is damaged,", rows, whole, whole))
        here = {r.offset for b in decoded(specimen.files[case.path]) for r in b.records}
        lost = [row for row in whole if row[0] not in here and row not in rows]
        if lost:
            raise Failed(f"lost from segments that are not damaged: {lost[:3]}; said: {seen.problems[:3]}")
        if not seen.problems:
            expected = read_by_the_twin(files)
            if rows != expected:
                raise Failed(difference("read", rows, expected, whole))


def to_row(row: dict[str, Any]) -> Row:
    """Return a row of the data source, comparable with the twin's."""
    headers = tuple((h["key"].encode(), h["value"]) for h in row.get("headers") or ())
    at = row["timestamp"]
    return row["offset"], -1 if at is None else at // 1000, row["key"], row["value"], headers


def data_rows(batches: list[Batch]) -> list[Row]:
    """Return the data records of decoded batches."""
    return [(r.offset, r.timestamp, r.key, r.value, r.headers) for b in batches if not b.control for r in b.records]


# Records of cleaned segments; base and size of those that stay, or hold nothing: a last one above the high watermark
Cleaned = tuple[list[Row], list[tuple[int, int]]]


def records_of_outcome(seen: Seen) -> Cleaned | str:
    """Return the records that a compaction left, by a reader that is not the product's."""
    assert seen.outcome is not None
    result = seen.outcome.result
    if result.status != "cleaned":
        return result.status
    rows: list[Row] = []
    for number, segment in enumerate(result.log.segments):
        if segment.cleaned:
            rows += data_rows(decoded(seen.outcome.path(number).read_bytes()))
    return rows, [(s.base_offset, s.size_bytes) for s in result.log.segments if not (s.cleaned and s.size_bytes)]


def decoded(data: bytes) -> list[Batch]:
    """Return batches up to a torn end. A batch that a slow reader refuses has no records."""
    out, at = [], 0
    while at + 12 <= len(data):
        size = 12 + struct.unpack_from(">i", data, at + 8)[0]
        if size < 26 or at + size > len(data):
            break
        out.append(_decoded(data[at : at + size]))
        at += size
    return out


@lru_cache(1 << 12)
def _decoded(part: bytes) -> Batch:
    readable = part
    try:
        if part[16] == 0 and part[17] & 7 == LZ4:  # no other library reads its frame
            key_end = sized(part, 18)[1]
            value = compress(GZIP, unpack(LZ4, 0, sized(part, key_end)[0] or b""))
            readable = part[:17] + bytes([GZIP]) + part[18:key_end] + struct.pack(">i", len(value)) + value
            readable = readable[:8] + struct.pack(">i", len(readable) - 12) + readable[12:]
        return replace(decode_any(readable)[0], data=part)
    except Exception:  # the slow readers check by assertions, and their codecs raise anything
        if part[16] < 2:
            offset = struct.unpack_from(">q", part)[0]
            return Batch(offset, offset, magic=part[16], data=part)
        if part[16] == 3:
            return v3.decode_header(part)
        (h,) = np.frombuffer(part, BATCH_HEADER, 1)
        bits, base = int(h["attributes"]), int(h["base_offset"])
        return Batch(
            base, base + int(h["last_offset_delta"]), codec=bits & 7, transactional=bool(bits & 16),
            control=bool(bits & 32), max_timestamp=int(h["max_timestamp"]), producer_id=int(h["producer_id"]),
            producer_epoch=int(h["producer_epoch"]), base_sequence=int(h["base_sequence"]), data=part,
        )  # fmt: skip


def logs_in(files: dict[str, bytes]) -> list[tuple[int, bytes]]:
    return sorted((int(Path(path).stem), data) for path, data in files.items() if re.search(r"\.log$", path))


def read_by_the_twin(files: dict[str, bytes]) -> list[Row]:
    rows = data_rows([b for _, data in logs_in(files) for b in decoded(data)])
    return [(r[0], r[1] if -(2**63) <= 1000 * r[1] < 2**63 else -1, *r[2:]) for r in rows]  # in microseconds' range


def cleaned_by_the_twin(files: dict[str, bytes], seen: Seen) -> list[Cleaned | str]:
    """Return the archives that the slow twin of the cleaner may leave: from the log alone, or with the producers in the
    last snapshot, most of which have expired.
    """
    plan = seen.plan
    assert plan is not None
    mtimes = {s.base_offset: s.mtime_ms for s in plan.input.segments}
    segments = []
    for base, data in logs_in(files):
        batches = decoded(data)
        safe = [*takewhile(lambda b: plan.read_until is None or b.last_offset < plan.read_until, batches)]
        segments.append(Segment(base, tuple(safe), mtimes[base]))
        if len(safe) < len(batches):
            break
    out: list[Cleaned | str] = []
    for producers in (None, _loaded(files, plan.run.now_ms)):
        log = load(segments, plan.input.log_start_offset, producers=producers)
        left = clean(log, Settings(index_interval_bytes=0), plan.input.first_dirty_offset, plan.run.now_ms)
        if left.range.cleanable_bytes == 0:
            out.append("not_due")
        rows = data_rows([b for s in left.segments[: left.n_cleaned] for b in s.batches])
        out.append(
            (rows, [(s.base_offset, s.size) for i, s in enumerate(left.segments) if i >= left.n_cleaned or not s.size])
        )
    return out


def _loaded(files: dict[str, bytes], now_ms: int) -> State:
    """Return producers from the last readable snapshot."""
    state = State()
    for path in sorted((path for path in files if path.endswith(".snapshot")), reverse=True):
        try:
            entries = producer_snapshot.read(files[path], path)
        except LogFormatError:
            continue
        state.load(entries.tolist(), now_ms, 86_400_000)
        break
    return state


def difference(what: str, ours: Any, expected: Any, healthy: Any) -> str:
    if isinstance(ours, str) or isinstance(expected, str):
        return f"{what}: {ours!r}, expected {expected!r}"
    if isinstance(ours, tuple):
        if ours[1] != expected[1]:
            return f"{what}: segments that stay are {ours[1]}, expected {expected[1]}"
        ours, expected, healthy = ours[0], expected[0], healthy[0]
    missing = [row for row in expected if row not in ours]
    more = [row for row in ours if row not in expected]
    return f"{what}: missing {missing[:3]}, more {more[:3]}; of the undamaged archive {len(healthy)} rows"
