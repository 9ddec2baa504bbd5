"""Offsets that no segment holds: lawful in what a real broker and its cleaner leave, a gap where a file is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jobs.archive.listing import list_archive
from jobs.compact.plan import inputs_from_archive
from logformat.batches.chunks import ChunkBuffer
from logformat.batches.segment import open_segment
from logformat.layout import BATCH
from logformat.names import segment_file
from logformat.side_files import transaction_index
from tests.builders.archives import borders
from tests.builders.damage import RECORDS, SEGMENT_OFFSETS, SEGMENTS, Partition, batch_at, build
from tests.builders.logs import write_partition
from tests.builders.trees import files_in
from tests.golden import PASSES, Case, case_names
from udfs.compact.analyse import Analysis, analyse
from udfs.compact.plan import CleanSettings, Gap, Limits, NotDue, PartitionPlan, PartitionResult
from udfs.compact.scan_partition import scan_all, scan_identity
from udfs.compact.scan_segment import thinned_offset
from udfs.problem import Problem, SetAside
from udfs.segments import SegmentInput, SideFile
from udfs.storage import open_root
from udfs.verify.gaps import Thinned

END = SEGMENTS * SEGMENT_OFFSETS
ACTIVE = END - SEGMENT_OFFSETS
INNER = SEGMENT_OFFSETS


@pytest.fixture
def part(tmp_path: Path) -> Partition:
    return build(tmp_path / "archive")


def plan_of(folder: Path, **fields: object) -> PartitionPlan:
    """As the driver would plan the partition of a folder."""
    topic, _, number = folder.name.rpartition("-")
    archived = list_archive(open_root(str(folder.parent)), lambda name: name == topic).partitions[topic, int(number)]
    assert archived.problem is None
    return PartitionPlan(
        topic=topic, partition=int(number), archive_uri=str(folder.parent), store_uri="", folder="", sealed=False,
        high_watermark=None, force=True, dry_run=True, now_ms=1_800_000_000_000, settings=CleanSettings(),
        limits=Limits(), secret=(1, 2), **inputs_from_archive(archived) | fields,  # type: ignore[arg-type]
    )  # fmt: skip


def listed(s: SegmentInput, **changes: object) -> SegmentInput:
    """The same, listed in another way."""
    return replace(s, listed=replace(s.listed, **changes))  # type: ignore[arg-type]


def judged(plan: PartitionPlan) -> Problem | Analysis | PartitionResult:
    """The problem, or what may be worked through."""
    buffer = ChunkBuffer(1 << 20)
    try:
        return analyse(plan, scan_all(plan, buffer), scan_identity(plan, buffer))
    except SetAside as reason:
        return reason.problem
    except NotDue as reason:
        return reason.result


def state(plan: PartitionPlan) -> str:
    found = judged(plan)
    return found.state if isinstance(found, Problem) else "fine"


# -- logs of real brokers


@pytest.mark.parametrize("name", case_names())
def test_what_a_broker_wrote_or_cleaned_has_no_gap(cases: dict[str, Case], name: str) -> None:
    """With its cleaner's checkpoint and without it."""
    case = cases[name]
    for partition in case.partitions:
        for folder in (case.input(partition), *(case.expected(n, partition) for n in PASSES)):
            assert state(plan_of(folder)) == "fine"
        checkpoint = case.first_dirty_offset(1, partition)
        assert state(plan_of(case.input(partition), checkpoint=checkpoint, cleaner_checkpoint=checkpoint)) == "fine"


@pytest.mark.parametrize("name", case_names())
def test_any_segment_that_is_missing_or_short(cases: dict[str, Case], name: str) -> None:
    """Each between the first of the head and the last: gone with its indexes or without, empty, cut at a border."""
    case = cases[name]
    for partition in case.partitions:
        begins = case.first_dirty_offset(1, partition)
        plan = plan_of(case.input(partition), checkpoint=begins, cleaner_checkpoint=begins)
        inner = [i for i, s in enumerate(plan.segments[:-1]) if i and s.base_offset >= begins]
        assert inner
        for i in inner:
            s = plan.segments[i]
            before, after = plan.segments[:i], plan.segments[i + 1 :]
            bare = listed(s, index=None, time_index=None)
            half = borders((case.input(partition) / Path(s.listed.path).name).read_bytes())
            half = half[len(half) // 2 - 1 : len(half) // 2] if len(half) > 1 else [0]
            orphan = SideFile(plan.archive_uri, s.listed.path.replace(".log", ".index"), s.base_offset)
            for made in (
                replace(plan, segments=(*before, *after)),
                replace(plan, segments=(*before, *after), orphans=(orphan,)),
                replace(plan, segments=(*before, listed(bare, size=0), *after)),
                replace(plan, segments=(*before, listed(bare, size=half[0]), *after)),
                replace(plan, segments=(*before, listed(s, size=half[0]), *after)),
            ):
                assert state(made) == "gap"
                accepting = replace(made, settings=replace(made.settings, gaps="accept"))
                found = judged(accepting)
                if isinstance(found, Problem):  # not to be accepted: a transaction was open over it
                    assert name.startswith("txn")
                    assert found.kind == "transaction" or found.expected.startswith("the end of the transaction")
                    continue
                assert any(g.last == after[0].base_offset - 1 for g in found.gaps)


@pytest.mark.parametrize("name", [n for n in case_names() if n.endswith("-more")])
def test_below_the_checkpoint_a_file_tells(cases: dict[str, Case], name: str) -> None:
    """There a cleaner makes holes, so only an index shows that a .log is missing, or short."""
    case = cases[name]
    for partition in case.partitions:
        begins = case.first_dirty_offset(1, partition)
        plan = plan_of(case.input(partition), checkpoint=begins, cleaner_checkpoint=begins)
        below = [i for i, s in enumerate(plan.segments) if i and s.base_offset < begins]
        assert below
        told = 0
        for i in below:
            s = plan.segments[i]
            rest = (*plan.segments[:i], *plan.segments[i + 1 :])
            orphan = SideFile(plan.archive_uri, s.listed.path.replace(".log", ".index"), s.base_offset)
            assert state(replace(plan, segments=rest)) == "fine"  # nothing says so
            assert state(replace(plan, segments=rest, orphans=(orphan,))) == "gap"
            empty = replace(plan, segments=(*plan.segments[:i], listed(s, size=0), *plan.segments[i + 1 :]))
            log = case.input(partition) / Path(s.listed.path).name
            entries = sum(log.with_suffix(kind).stat().st_size for kind in (".index", ".timeindex"))
            assert state(empty) == ("gap" if entries else "fine")  # indexes of few batches hold nothing
            told += bool(entries)
        assert told


# -- one log, whose files are taken away


def remove(part: Partition, base: int, *kinds: str) -> None:
    for kind in kinds or ("log", "index", "timeindex"):
        (part.folder / segment_file(base, kind)).unlink()


def checkpoint(part: Partition, name: str, offset: int) -> None:
    (part.root / f"{name}-checkpoint").write_text(f"0\n1\nt 0 {offset}\n")


def expect_gap(part: Partition, path: str) -> Problem:
    """Set aside, and found by verify, at the same file; with gaps accepted worked through, and noted."""
    result = part.compact()
    assert result.problem is not None and result.status == "set_aside"
    assert (result.problem.kind, result.problem.state, result.problem.path) == ("gap", "gap", f"t-0/{path}")
    assert ("gap", f"t-0/{path}") in [(p.kind, p.path) for p in part.verify().problems]
    plan = part.plan()
    accepted = part.compact(plan=replace(plan, settings=replace(plan.settings, gaps="accept")))
    assert accepted.status == "cleaned" and accepted.notes
    return result.problem


def test_a_segment_in_the_middle(part: Partition) -> None:
    remove(part, INNER)
    problem = expect_gap(part, segment_file(2 * INNER, "log"))
    assert f"begins at offset {INNER}" in problem.expected and "--gaps accept" in problem.hint
    plan = part.plan()
    accepted = part.compact(plan=replace(plan, settings=replace(plan.settings, gaps="accept")))
    assert accepted.gaps == (Gap(INNER, 2 * INNER - 1, 0, plan.segments[0].listed.size),)
    assert any(f"no segment holds offsets {INNER} to {2 * INNER - 1}" in note for note in accepted.notes)


def test_an_index_without_its_log(part: Partition) -> None:
    remove(part, INNER, "log", "timeindex")
    expect_gap(part, segment_file(INNER, "index"))


def test_an_index_whose_log_a_broker_was_about_to_delete(part: Partition) -> None:
    """It renames the .log first; retention took the first segment, and the broker was killed in between."""
    log = part.log(0)
    log.rename(log.with_name(log.name + ".deleted"))
    (part.folder / "leader-epoch-checkpoint").write_text(f"0\n1\n3 {INNER}\n")  # a broker moves it up before
    assert part.compact().status == "cleaned"
    assert not part.verify().problems


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_an_index_below_the_first_segment(part: Partition, kind: str) -> None:
    remove(part, 0, "log")
    remove(part, 0, "index" if kind == "timeindex" else "timeindex")
    expect_gap(part, segment_file(0, kind))
    checkpoint(part, "log-start-offset", INNER)
    assert part.compact().status == "cleaned"
    assert not part.verify().problems


def test_an_index_behind_the_last_segment(part: Partition) -> None:
    (part.folder / segment_file(END, "index")).write_bytes(b"")
    expect_gap(part, segment_file(END, "index"))


def test_the_first_segment_with_all_its_files(part: Partition) -> None:
    """The first leader epoch says where the log began; a broker that gives the beginning up moves it up."""
    remove(part, 0)
    expect_gap(part, "leader-epoch-checkpoint")
    (part.folder / "leader-epoch-checkpoint").write_text(f"0\n1\n3 {INNER}\n")
    assert part.compact().status == "cleaned"
    assert not part.verify().problems
    (part.folder / "leader-epoch-checkpoint").write_text("0\n1\n3 0\n")
    checkpoint(part, "log-start-offset", INNER)
    assert part.compact().status == "cleaned"
    assert not part.verify().problems


def test_an_empty_last_segment_whose_index_or_high_watermark_goes_on(part: Partition) -> None:
    part.log(ACTIVE).write_bytes(b"")
    result = part.compact()
    assert result.status == "cleaned"
    assert any("it may be cut short" in note for note in result.notes)
    remove(part, ACTIVE, "index", "timeindex")
    checkpoint(part, "replication-offset", END)
    plan = replace(part.plan(), high_watermark=END)
    assert any("its high watermark" in note for note in part.compact(plan=plan).notes)
    sealed = part.compact(plan=replace(plan, sealed=True)).problem
    assert sealed is not None and (sealed.kind, sealed.path) == ("gap", "replication-offset-checkpoint")


TXN_OVER_A_HOLE = {
    "committed before it": (
        "{pid=7 txn} a=1 || {pid=7 commit} | {pid=7 txn} b=1 || {pid=7 txn} c=1 | {pid=7 abort} | d=1 || e=1"
    ),
    "aborted before it": "{pid=7 txn} a=1 || {pid=7 abort} | b=1 || {pid=7 txn} c=1 | {pid=7 commit} | d=1 || e=1",
}


@pytest.mark.parametrize("text", TXN_OVER_A_HOLE.values(), ids=TXN_OVER_A_HOLE)
def test_a_transaction_whose_end_is_missing(tmp_path: Path, text: str) -> None:
    """Its producer's next marker is of another transaction: nobody can say what became of it."""
    write_partition(tmp_path / "t-0", text)
    hidden = files_in(tmp_path / "t-0")[1]
    for path in files_in(tmp_path / "t-0", f"{hidden.stem}.*"):
        path.unlink()
    plan = replace(plan_of(tmp_path / "t-0"), sealed=True)
    assert state(plan) == "gap"
    found = judged(replace(plan, settings=replace(plan.settings, gaps="accept")))
    assert isinstance(found, Problem)
    assert (found.state, found.expected) == ("gap", "the end of the transaction of producer 7 at offset 0")


@pytest.mark.parametrize("snapshots", [(4, 5, 6), (6,), ()])
def test_a_transaction_whose_end_only_a_snapshot_knows(tmp_path: Path, snapshots: tuple[int, ...]) -> None:
    """One behind the gap says that it is over, but not how. Without any it is open, and all from its data on waits."""
    folder = tmp_path / "t-0"
    write_partition(folder, "a=1 | {pid=7 txn} a=2 b=1 || {pid=7 abort} || c=1 || d=1")
    for path in [*files_in(folder, f"{files_in(folder)[1].stem}.*"), *files_in(folder, "*.snapshot")]:
        if path.suffix != ".snapshot" or int(path.stem) not in snapshots:
            path.unlink(missing_ok=True)
    plan = plan_of(folder)
    found = judged(replace(plan, settings=replace(plan.settings, gaps="accept")))
    if not snapshots:
        assert isinstance(found, PartitionResult) and found.status == "not_due"
        return
    assert isinstance(found, Problem)
    assert (found.state, found.expected) == ("gap", "the end of the transaction of producer 7 at offset 1")


def test_a_marker_that_only_the_index_misses(tmp_path: Path) -> None:
    """Below the checkpoint, where a hole says nothing: the entry of the next one begins above committed data."""
    folder = tmp_path / "t-0"
    write_partition(folder, TXN_OVER_A_HOLE["committed before it"])
    hidden = files_in(folder)[1]
    for path in files_in(folder, f"{hidden.stem}.*"):
        path.unlink()
    third = files_in(folder)[1]
    entry = np.array([(0, 7, 2, 4, 5)], transaction_index.ENTRY)
    third.with_suffix(".txnindex").write_bytes(transaction_index.write(entry))
    plan = replace(plan_of(folder, checkpoint=3, cleaner_checkpoint=3), sealed=True)
    found = judged(plan)
    assert isinstance(found, Problem)
    assert (found.kind, found.path) == ("transaction", f"t-0/{third.stem}.txnindex")
    third.with_suffix(".txnindex").unlink()
    assert state(replace(plan_of(folder, checkpoint=3, cleaner_checkpoint=3), sealed=True)) == "fine"


@pytest.mark.parametrize("later", ["{pid=7 txn} c=1 | {pid=7 commit}", "c=1"], ids=["its next marker", "a snapshot"])
@pytest.mark.parametrize("cleaned", [0, 9])
def test_a_marker_that_only_the_index_has(tmp_path: Path, later: str, cleaned: int) -> None:
    """Its segment was cut before it, and thinned batches above, or the checkpoint, say that a cleaner made the hole. By
    the other markers the aborted a=2 counts, and takes the committed a=1 with it.
    """
    folder = tmp_path / "t-0"
    write_partition(
        folder, f"a=1 || {{pid=7 txn}} a=2@1~9 | {{pid=7 abort ts=5}} || {later} | {{base=8}} d=1 || e=1 || f=1"
    )
    log = files_in(folder)[1]
    log.write_bytes(log.read_bytes()[: int(open_segment(log).headers()["position"][1])])

    def found(log_start: int = 0) -> Problem | Analysis | PartitionResult:
        plan = plan_of(folder, checkpoint=cleaned, cleaner_checkpoint=cleaned, log_start_offset=log_start)
        return judged(replace(plan, sealed=True, settings=replace(plan.settings, gaps="accept")))

    problem = found()
    assert isinstance(problem, Problem)
    assert (problem.kind, problem.path) == ("transaction", f"t-0/{log.stem}.txnindex")
    assert problem.expected == "the ABORT marker of producer 7 at offset 2, behind its data at 1"
    assert isinstance(found(1), Problem)
    assert isinstance(found(2), Analysis)  # nobody sees that data
    for first, cleaned_range in ((2, Analysis), (1, Problem)):  # of an entry that speaks of no data that is left
        entry = np.array([(0, 7, first, 2, 3)], transaction_index.ENTRY)
        log.with_suffix(".txnindex").write_bytes(transaction_index.write(entry))
        assert isinstance(found(), cleaned_range)
    log.with_suffix(".txnindex").unlink()
    assert isinstance(found(), Analysis)


def test_nothing_but_indexes(part: Partition) -> None:
    for number in range(SEGMENTS):
        remove(part, number * SEGMENT_OFFSETS, "log")
    problem = part.listed().problem
    assert problem is not None
    assert (problem.kind, problem.state, problem.path) == ("gap", "gap", f"t-0/{segment_file(0, 'index')}")


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_a_log_cut_at_a_batch_border_below_the_checkpoint(part: Partition, kind: str) -> None:
    """Nothing but its index knows. (The one that is left; a time index ends with the last batch of the segment.)"""
    data = part.log(INNER).read_bytes()
    part.log(INNER).write_bytes(data[: borders(data)[0]])
    remove(part, INNER, "index" if kind == "timeindex" else "timeindex")
    checkpoint(part, "cleaner-offset", ACTIVE)
    result = part.compact()
    assert result.problem is not None
    assert (result.problem.kind, result.problem.path) == ("gap", f"t-0/{segment_file(INNER, 'log')}")
    assert result.problem.position == borders(data)[0]
    assert f"up to offset {2 * INNER - 1}" in result.problem.expected
    assert {p.kind for p in part.verify().problems} == {"index"}  # the index, which the log does not bear out


def test_an_index_of_another_log_shows_nothing(part: Partition) -> None:
    """Its offsets lie beyond the next segment."""
    part.write(INNER, [batch_at(INNER)])
    (part.folder / segment_file(INNER, "index")).write_bytes(b"".join(n.to_bytes(4, "big") for n in (5000, 90_000)))
    (part.folder / segment_file(INNER, "timeindex")).unlink()
    checkpoint(part, "cleaner-offset", ACTIVE)
    assert part.compact().status == "cleaned"


def test_the_last_segment_cut_short(part: Partition) -> None:
    """While it is written its index may be the younger copy; when it is sealed, or a snapshot says so, it is a gap."""
    data = part.log(ACTIVE).read_bytes()
    part.log(ACTIVE).write_bytes(data[: borders(data)[0]])
    assert part.compact().status == "cleaned"
    sealed = part.compact(sealed=True).problem
    assert sealed is not None and (sealed.kind, sealed.path) == ("gap", f"t-0/{segment_file(ACTIVE, 'log')}")
    (part.folder / segment_file(END, "snapshot")).write_bytes(b"")
    said = part.compact().problem
    assert said is not None and (said.kind, said.path) == ("gap", f"t-0/{segment_file(END, 'snapshot')}")


@pytest.mark.parametrize(("offset", "how_far"), [(INNER, "nothing of it was read"), (INNER + RECORDS, "read up to")])
def test_how_far_a_segment_was_read(part: Partition, offset: int, how_far: str) -> None:
    done = judged(replace(part.plan(), high_watermark=offset))
    assert not isinstance(done, Problem)
    [note] = [note for note in done.notes if "high watermark" in note]
    assert f"{INNER:020d}.log: {how_far}" in note
    assert "-1" not in note


def test_above_the_high_watermark_nothing_is_asked(part: Partition) -> None:
    remove(part, 2 * INNER)
    (part.folder / segment_file(END + 5, "snapshot")).write_bytes(b"")
    checkpoint(part, "replication-offset", INNER + RECORDS)
    plan = replace(part.plan(), high_watermark=INNER + RECORDS)
    assert part.compact(plan=plan).status == "cleaned"


# -- what a cleaner leaves


def thinned(base: int, keep: tuple[int, ...]) -> list:
    """The batches of a segment of which a cleaner kept some."""
    return [batch_at(base + i * RECORDS) for i in keep]


def test_a_replica_that_was_filled_from_a_cleaned_leader(part: Partition) -> None:
    """Holes between its segments and inside of them, and no checkpoint: the hole at 12 lies below cleaned batches."""
    part.write(0, thinned(0, (0, 1)))
    part.write(INNER, thinned(INNER, (0, 2)))
    result = part.compact()
    assert result.status == "cleaned"
    assert result.gaps == (Gap(2 * RECORDS, INNER - 1, 0, part.log(0).stat().st_size, lost=False),)
    assert any("(a cleaner's work)" in note for note in result.notes)
    checked = part.verify()
    assert not checked.problems and any("a cleaner took them" in note for note in checked.notes)


def test_cleaned_work_below_a_hole_does_not_excuse_it(part: Partition) -> None:
    """The cleaner went through the first segment, and another file is missing behind it."""
    part.write(0, thinned(0, (0, 2)))
    remove(part, 2 * INNER)
    expect_gap(part, segment_file(ACTIVE, "log"))


def test_work_below_the_checkpoint_excuses_nothing_above_it(part: Partition) -> None:
    part.write(INNER, thinned(INNER, (0, 2)))
    checkpoint(part, "cleaner-offset", 2 * INNER)
    remove(part, 2 * INNER)
    expect_gap(part, segment_file(ACTIVE, "log"))


def test_a_hole_over_the_checkpoint(part: Partition) -> None:
    """What begins at the checkpoint is missing; what is below it a cleaner may have taken."""
    remove(part, INNER)
    checkpoint(part, "cleaner-offset", INNER + RECORDS)
    problem = expect_gap(part, segment_file(2 * INNER, "log"))
    assert f"begins at offset {INNER + RECORDS}" in problem.expected


def test_thinned_offset_and_its_twin_of_verify() -> None:
    """Against the definition, on drawn headers: both say the same, and so does a loop."""
    draw = np.random.default_rng(7)
    for _ in range(300):
        n = int(draw.integers(1, 6))
        batches = np.zeros(n, BATCH)
        start = int(draw.integers(0, 50))
        at = start
        for row in batches:
            at += int(draw.choice([0, 0, 0, 3]))
            size = int(draw.integers(1, 4))
            wrapper = draw.random() < 0.2
            row["base_offset"], row["last_offset"] = (-1 if wrapper else at), at + size - 1
            row["records_count"] = -1 if wrapper else size - int(draw.random() < 0.2)
            at += size
        expected, before = -1, start - 1
        for row in batches:
            base, last = int(row["base_offset"]), int(row["last_offset"])
            if base >= 0 and (base != before + 1 or row["records_count"] < last - base + 1):
                expected = last
            before = last
        assert thinned_offset(batches, start - 1) == expected
        twin = Thinned(start)
        twin.see(batches)
        assert twin.last == expected


# -- checkpoints that belong to another log


@pytest.mark.parametrize("name", ["log-start-offset", "cleaner-offset"])
@pytest.mark.parametrize("offset", [END + 1, 1_000_000])
def test_a_checkpoint_beyond_the_log_end(part: Partition, name: str, offset: int) -> None:
    checkpoint(part, name, offset)
    problem = part.compact().problem
    assert problem is not None
    assert (problem.kind, problem.state, problem.path) == ("side_file", "diverged", "t-0")
    assert f"{END}" in problem.expected and f"{offset}" in problem.found and "--reset" in problem.hint
    assert any(p.kind == "side_file" for p in part.verify().problems)


@pytest.mark.parametrize("name", ["log-start-offset", "cleaner-offset"])
def test_a_checkpoint_at_the_log_end(part: Partition, name: str) -> None:
    """Everything was deleted, or cleaned: so a broker may leave it."""
    checkpoint(part, name, END)
    assert part.compact().status in ("cleaned", "not_due")


def test_a_high_watermark_older_than_the_checkpoints(part: Partition) -> None:
    """It is written every five seconds; what was cleaned, or given up, lay below it then."""
    checkpoint(part, "cleaner-offset", 2 * INNER)
    plan = replace(part.plan(), high_watermark=INNER)
    assert part.compact(plan=plan).status in ("cleaned", "not_due")
