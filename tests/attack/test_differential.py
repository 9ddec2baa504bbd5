"""Logs that Kafka's own UnifiedLog writes, by operations drawn from a seed, cleaned by its cleaner and by ours.

There are three passes: the first from a drawn checkpoint; the second, 25 hours later, from the end of the first, after
both logs have grown; the third from the log start. After each, every record and every batch is equal, and so is the
offset up to which the log is clean. Every second log is cleaned in blocks. A log that differs is made again with fewer
operations until none can go.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from lastkey.logformat.side_files import producer_snapshot
from lastkey.logformat.side_files.checkpoints import read_leader_epochs
from lastkey.udfs.compact.plan import PartitionPlan
from tests.attack.summary import chosen, tell
from tests.builders.folders import Archived, archived_at, compact, make_plan
from tests.builders.plans import changed
from tests.builders.splits import compact_in_blocks
from tests.kafka_lab import (
    CleanSpec,
    DrawnLog,
    DrawSpec,
    LabError,
    RecoverSpec,
    clean,
    draw_logs,
    dump,
    recover,
    without_segments,
)
from tests.reference.cleaner import Settings

pytestmark = [pytest.mark.attack, pytest.mark.slow, pytest.mark.kafka]

PASSES = (1, 2, 3)
HOURS_25_MS = 90_000_000
OPERATIONS, MORE = 60, 12  # at most
MORE_FROM = 1000  # numbers of the operations of the second pass
FEW, MOST_DIFFERENT = 20, 3  # logs; so many differing logs end the test
MOST_SHRUNK = 200  # attempts to make a log that differs smaller
EQUAL = "equal"
REFUSED, GONE, UNDECIDED, LOST = (
    "refused by Kafka's cleaner", "cut off below their log start", "with a transaction that may have ended in a gap",
    "with a lost marker, where Lastkey keeps all records that Kafka's cleaner keeps, and more",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A log: its seed, and the operations that are left of those drawn."""

    seed: int
    operations: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.seed}:{','.join(map(str, self.operations))}"


@dataclass
class Cleaned:
    """Results of one log, or of all."""

    logs: Counter[str] = field(default_factory=Counter)  # outcome -> number
    passes: int = 0
    seen_only: int = 0  # logs of which only a consumer's view was compared
    records: int = 0
    segments: int = 0
    operations: Counter[str] = field(default_factory=Counter)


def draw_case(seed: int) -> Case:
    rng = random.Random(seed)
    first, more = rng.randrange(1, OPERATIONS), rng.randrange(MORE)
    return Case(seed, (*range(first), *range(MORE_FROM, MORE_FROM + more)))


def case_named(name: str) -> Case:
    seed, _, operations = name.partition(":")
    return Case(int(seed), tuple(map(int, operations.split(",")))) if operations else draw_case(int(seed))


def test_both_cleaners_write_the_same_logs(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    option = request.config.getoption
    first = option("--attack-seed") * 1_000_000
    cases = chosen(request, map(draw_case, itertools.count(first)), FEW, case_named)
    different(Case(first, (0, 1)), tmp_path, Cleaned())  # the JVM starts, kernels are compiled
    done, differences = Cleaned(), []
    for case in itertools.takewhile(lambda _: len(differences) < MOST_DIFFERENT, cases):
        if (difference := different(case, tmp_path, done)) is not None:
            least = case if option("--attack-case") else shrunk(case, tmp_path)
            differences.append(f"--attack-case '{least}': {different(least, tmp_path, Cleaned()) or difference}")
    line = summary_line(done, len(differences))
    tell(request, line)
    assert not differences, f"{line}\n" + "\n".join(differences)
    assert done.logs[EQUAL] or option("--attack-case"), line
    assert done.segments > done.logs[EQUAL] or option("--attack-case"), line


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("56004000303:11,12,20,36,37,40,41,42", id="a truncated marker, when all producers had expired"),
        pytest.param("56004001763", id="an open transaction below a log start behind the last batch of its segment"),
        pytest.param("56004001900", id="nothing to clean from the log start on"),
        pytest.param("57001000594:18,19,20,21,24,25,26,27,28,31,32", id="only empty segments from the log start on"),
        pytest.param("57001000320:4,9,10,12,13,14,21,22,23,24,25,26", id="a crash, a day after a producer wrote"),
    ],
)  # fmt: skip
def test_earlier_differences_are_fixed(name: str, tmp_path: Path) -> None:
    done = Cleaned()
    assert different(case_named(name), tmp_path / "log", done) is None
    assert done.logs == {EQUAL: 1}


def summary_line(done: Cleaned, differ: int) -> str:
    """Return the summary."""
    ended = "all equal" if not differ else f"{differ} differ"
    if done.seen_only:  # a transaction began below the log start
        ended += f", {done.seen_only:,} of them as a consumer sees them"
    refused = "".join(f"; {done.logs[why]:,} more {why}" for why in (REFUSED, GONE, UNDECIDED, LOST) if done.logs[why])
    drawn = ", ".join(f"{n:,} {what}" for what, n in done.operations.most_common())
    return (
        f"differential: {done.logs[EQUAL] + differ:,} logs, {done.passes:,} passes, {done.segments:,} segments, "
        f"{done.records:,} records: {ended}{refused}; {done.operations.total():,} operations: {drawn}"
    )


def shrunk(case: Case, work: Path) -> Case:
    """Return the smallest case that still differs: leave out operations in halves, then in smaller pieces."""
    size, left = len(case.operations) // 2, MOST_SHRUNK
    while size:
        at = 0
        while at < len(case.operations) and left:
            left -= 1
            fewer = Case(case.seed, case.operations[:at] + case.operations[at + size :])
            if different(fewer, work, Cleaned()) is not None:
                case = fewer
            else:
                at += size
        size //= 2
    return case


def different(case: Case, work: Path, done: Cleaned) -> str | None:
    """Return the difference after some pass, or None; count the work in `done`."""
    shutil.rmtree(work, ignore_errors=True)
    theirs, ours = work / "kafka" / "t-0", work / "ours0"
    first = tuple(i for i in case.operations if i < MORE_FROM)
    [drawn] = draw_logs([DrawSpec(theirs, case.seed, first)])
    if drawn.log_start == 0:
        shutil.copytree(theirs, ours / "t-0")
    if not drawn.closed:  # as after a crash: a broker recovers what it had not flushed, we take it as it is
        active = max(int(path.stem) for path in theirs.glob("*.log"))
        going_on = DrawSpec(theirs, case.seed, (), True, drawn.log_start, drawn.now_ms, drawn.leader_epoch)
        draw_logs([replace(going_on, clean=False, recovery_point=active)])
    if drawn.log_start > 0:  # a recovered broker does not know a transaction that is open below the log start
        shutil.copytree(theirs, ours / "t-0")
    if denies_transactions(theirs, drawn.log_start):  # KAFKA.md, "Producers": Kafka believes the snapshot, we the log
        know_transactions(theirs, work / "known" / "t-0", drawn)
    rng = random.Random(case.seed)
    bases = [int(path.stem) for path in theirs.glob("*.log")]
    start = rng.choice([drawn.log_start, *(b for b in bases if b >= drawn.log_start)])
    counted = Cleaned(segments=len(bases))
    now_ms = drawn.now_ms
    if max(bases) < drawn.log_start and log_end(theirs) < drawn.log_start:
        done.logs[GONE] += 1  # a broker starts this log over, and we name a problem
        return None
    kinds = "D" if begun_below(theirs, drawn.log_start) else "BR"
    for number in PASSES:
        if number == 2:
            more = [i for i in case.operations if i >= MORE_FROM]
            now_ms, difference = appended(case.seed, more, (theirs, ours / "t-0"), drawn, now_ms, kinds, counted)
            if difference is not None:
                return difference
        if number == 3:
            start = drawn.log_start
        before, lost = lines(theirs, drawn.log_start), has_lost_marker(theirs)
        try:
            end = cleaned_by_kafka(theirs, drawn, now_ms, start)
        except LabError as error:
            if number == 1:
                counted = Cleaned()  # this log was not compared
            counted.logs[REFUSED] += 1
            add(done, counted)
            return None if "Exception" in str(error) else str(error)
        out = work / f"ours{number}"
        plan = plan_for(archived_at(ours, "t-0"), out, drawn, now_ms, start, number)
        result = (compact_in_blocks if case.seed % 2 else compact)(plan)
        if (problem := result.result.problem) is not None:
            if problem.kind != "gap" or "the end of the transaction" not in problem.expected:
                return f"pass {number}: {problem}"
            done.logs[UNDECIDED] += 1  # Kafka takes the transaction for open, and cleans nothing from there on
            return None
        archive = work / f"archive{number}"
        if result.result.status == "cleaned":
            result.as_archive(archive, snapshots=True)
        else:
            shutil.copytree(ours / "t-0", archive / "t-0")
        ours = archive
        expected, actual = (lines(folder, drawn.log_start, kinds) for folder in (theirs, ours / "t-0"))
        if actual != expected and lost:  # KAFKA.md: Kafka takes the outcome of the next marker, we keep the records
            missing = data_records(theirs, drawn.log_start) - data_records(ours / "t-0", drawn.log_start)
            done.logs[LOST] += not missing
            return f"pass {number}: missing beside a lost marker: {sorted(missing)[:3]}" if missing else None
        if actual != expected:
            return f"pass {number} ({result.result.status}): {unlike(expected, actual)}"
        until = result.result.log.first_dirty_offset
        if until != end:
            return f"pass {number} ({result.result.status}): clean up to {until}, and Kafka's up to {end}"
        if result.result.status != "cleaned":  # equal, then: side files of the one that was recovered
            shutil.rmtree(ours)
            shutil.copytree(theirs, ours / "t-0")
        counted.passes += 1
        counted.records += sum(line.startswith("R") for line in before)
        start, now_ms = end, now_ms + HOURS_25_MS
    counted.logs[EQUAL] += 1
    counted.seen_only += kinds == "D"
    counted.operations.update(drawn.counts)
    add(done, counted)
    return None


def add(done: Cleaned, one: Cleaned) -> None:
    done.logs += one.logs
    done.operations += one.operations
    done.passes += one.passes
    done.seen_only += one.seen_only
    done.records += one.records
    done.segments += one.segments


def appended(
    seed: int,
    operations: Sequence[int],
    folders: Sequence[Path],
    drawn: DrawnLog,
    now_ms: int,
    kinds: str,
    counted: Cleaned,
) -> tuple[int, str | None]:
    """Append the same operations to both logs: a broker's knowledge of the two must be the same too.

    Both begin with one snapshot of the log end, Kafka's: it has dropped producers that were idle for a day, which
    reading a log does not drop.
    """
    active = max(int(path.stem) for path in folders[0].glob("*.log"))
    for folder in folders[1:]:
        for path in folder.glob("*.snapshot"):
            if int(path.stem) > active:
                path.unlink()
        for path in folders[0].glob("*.snapshot"):
            if int(path.stem) > active:
                shutil.copy2(path, folder)
    going_on = DrawSpec(folders[0], seed, tuple(operations), True, drawn.log_start, now_ms, drawn.leader_epoch)
    a, b = draw_logs(replace(going_on, directory=folder) for folder in folders)
    theirs, ours = (lines(folder, drawn.log_start, kinds) for folder in folders)
    counted.operations.update(a.counts)
    if a != b or theirs != ours:
        return a.now_ms, f"more was appended: {a} and {b}; {unlike(theirs, ours)}"
    return a.now_ms, None


def cleaned_by_kafka(folder: Path, drawn: DrawnLog, now_ms: int, start: int) -> int:
    """Clean a log with Kafka's cleaner; return the end of the clean part."""
    spec = CleanSpec(
        folder, now_ms, segment_bytes=drawn.segment_bytes, first_dirty_offset=start, log_start=drawn.log_start,
        delete_retention_ms=drawn.delete_retention_ms, segment_index_bytes=drawn.segment_index_bytes,
        index_interval_bytes=drawn.index_interval_bytes,
    )  # fmt: skip
    rounds = clean([spec])
    return rounds[-1].end_offset if rounds else start


def plan_for(archived: Archived, store: Path, drawn: DrawnLog, now_ms: int, start: int, number: int) -> PartitionPlan:
    settings = Settings(
        delete_retention_ms=drawn.delete_retention_ms, segment_bytes=drawn.segment_bytes,
        segment_index_bytes=drawn.segment_index_bytes, index_interval_bytes=drawn.index_interval_bytes,
    )  # fmt: skip
    plan = make_plan(
        archived, store, settings, now_ms=now_ms, log_start_offset=drawn.log_start, checkpoint=start, force=number == 3
    )
    epochs = archived.root / "t-0" / "leader-epoch-checkpoint"
    return changed(plan, leader_epochs=tuple(read_leader_epochs(epochs.read_bytes(), str(epochs))))


def lines(folder: Path, log_start: int, kinds: str = "BR") -> list[str]:
    """Return records and batches from the log start on. No consumer sees those below it, and they are cleaned
    differently.
    """
    return [line for line in without_segments(dump([folder], kinds)[folder]) if int(line.split("\t")[1]) >= log_start]


def begun_below(folder: Path, log_start: int) -> bool:
    """Return whether a transaction began below the log start. A broker that has recovered the log does not know how the
    transaction began, nor that it was aborted. So the broker does not know how long the markers are needed; then only a
    consumer's view is compared.
    """
    records = (line.split("\t") for line in dump([folder], "R")[folder])
    return any(fields[10] == "1" and fields[11] == "-" and int(fields[1]) < log_start for fields in records)


def denies_transactions(folder: Path, log_start: int) -> bool:
    """Return whether a transaction is open from the log start on that the newest snapshot does not know."""
    opened: dict[int, int] = {}  # producer -> first offset
    for line in dump([folder], "B")[folder]:
        base, last, *_, producer, _, _, transactional, control = line.split("\t")[1:14]
        if control == "1":
            opened.pop(int(producer), None)
        elif transactional == "1" and int(last) >= log_start:
            opened.setdefault(int(producer), int(base))
    newest = max(folder.glob("*.snapshot"), default=None)
    entries = [] if newest is None else producer_snapshot.read(newest.read_bytes(), str(newest)).tolist()
    snapshot = {entry[0]: entry[-1] for entry in entries}
    return any(not -1 < snapshot.get(producer, -1) <= first for producer, first in opened.items())


def know_transactions(folder: Path, copy: Path, drawn: DrawnLog) -> None:
    """Replace the snapshots by the one that Kafka makes when it recovers the whole log."""
    shutil.copytree(folder, copy)
    recover([RecoverSpec(copy, drawn.index_interval_bytes, drawn.log_start)])
    for path in folder.glob("*.snapshot"):
        path.unlink()
    shutil.copy2(max(copy.glob("*.snapshot")), folder)


def has_lost_marker(folder: Path) -> bool:
    """Return whether there are two transactional batches of a producer with different epochs and no marker between."""
    open_epochs: dict[str, str] = {}
    for line in dump([folder], "B")[folder]:
        producer, epoch, _, transactional, control = line.split("\t")[9:14]
        if control == "1":
            open_epochs.pop(producer, None)
        elif transactional == "1" and open_epochs.setdefault(producer, epoch) != epoch:
            return True
    return False


def data_records(folder: Path, log_start: int) -> set[tuple[str, ...]]:
    """Return (offset, timestamp, key, value) of the records from the log start on, markers excepted."""
    records = (line.split("\t") for line in lines(folder, log_start, "R"))
    return {(fields[1], fields[2], fields[4], fields[5]) for fields in records if fields[11] == "-"}


def log_end(folder: Path) -> int:
    """Return the offset behind the last batch."""
    return max((int(line.split("\t")[2]) + 1 for line in dump([folder], "B")[folder]), default=0)


def unlike(expected: Sequence[str], found: Sequence[str]) -> str:
    more, missing = sorted(set(found) - set(expected)), sorted(set(expected) - set(found))
    return f"{len(expected)} lines of Kafka's, {len(found)} of ours: more {more[:3]}, missing {missing[:3]}"
