"""Offsets that no segment holds: lawful in logs of a real broker and its cleaner, a gap if a file is missing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from lastkey.jobs.archive.listing import ArchivedPartition, list_archive
from lastkey.jobs.compact.plan_inputs import input_from_archive, refilled_gap_problem
from lastkey.logformat.batches.chunks import ChunkBuffer
from lastkey.logformat.batches.segment import open_segment
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import BATCH, DELETE_HORIZON_MASK
from lastkey.logformat.names import segment_file
from lastkey.logformat.side_files import transaction_index
from lastkey.udfs.compact.plan import CleanSettings, Gap, Limits, PartitionPlan, PartitionResult
from lastkey.udfs.compact.scan import transactions
from lastkey.udfs.compact.scan.analyse import Analysis, analyse
from lastkey.udfs.compact.scan.scan_partition import check_gaps, scan_all, scan_identity
from lastkey.udfs.compact.scan.transactions import check_ends_known
from lastkey.udfs.holes import thinned_offset
from lastkey.udfs.problem import Problem
from lastkey.udfs.segments import SideFile
from lastkey.udfs.storage import open_root
from lastkey.udfs.verify.batch_order import Thinned, gap_problems
from lastkey.udfs.verify.findings import CheckPlan
from tests.builders.archives import borders
from tests.builders.damage import RECORDS, SEGMENT_OFFSETS, SEGMENTS, Partition, batch_at, build
from tests.builders.logs import write_partition
from tests.builders.plans import changed, made_plan
from tests.builders.trees import files_in
from tests.golden import PASSES, Case, case_names

END = SEGMENTS * SEGMENT_OFFSETS
ACTIVE = END - SEGMENT_OFFSETS
INNER = SEGMENT_OFFSETS


@pytest.fixture
def part(tmp_path: Path) -> Partition:
    return build(tmp_path / "archive")


def plan_folder(folder: Path, **fields: object) -> PartitionPlan:
    """Return the plan that the driver would make for the partition of a folder."""
    topic, _, number = folder.name.rpartition("-")
    archived = list_archive(open_root(str(folder.parent)), lambda name: name == topic).partitions[topic, int(number)]
    assert archived.problem is None
    return made_plan(
        topic=topic, partition=int(number), store_uri="", folder="", sealed=False,
        high_watermark=None, force=True, dry_run=True, now_ms=1_800_000_000_000, settings=CleanSettings(),
        limits=Limits(), secret=(1, 2), given=input_from_archive(archived), **fields,  # type: ignore[arg-type]
    )  # fmt: skip


def judged(plan: PartitionPlan) -> Problem | Analysis | PartitionResult:
    """Return the problem that makes the partition uncleanable, or the analysis, or the result if nothing is due."""
    buffer = ChunkBuffer(1 << 20)
    try:
        return analyse(plan, scan_all(plan, buffer), scan_identity(plan, buffer), plan.extent)
    except LogFormatError as error:
        return Problem.of(error)


def state(plan: PartitionPlan) -> str:
    gap_result = judged(plan)
    return gap_result.state if isinstance(gap_result, Problem) else "fine"


# -- logs of real brokers


@pytest.mark.parametrize("name", case_names())
def test_golden_logs_have_no_gap(cases: dict[str, Case], name: str) -> None:
    """With its cleaner's checkpoint and without it."""
    case = cases[name]
    for partition in case.partitions:
        for folder in (case.input(partition), *(case.expected(n, partition) for n in PASSES)):
            assert state(plan_folder(folder)) == "fine"
        checkpoint = case.first_dirty_offset(1, partition)
        plan = plan_folder(case.input(partition), first_dirty_offset=checkpoint, cleaner_checkpoint=checkpoint)
        assert state(plan) == "fine"


@pytest.mark.long
@pytest.mark.parametrize("name", case_names())
def test_missing_or_short_segment_is_a_gap(cases: dict[str, Case], name: str) -> None:
    """Take each segment of the dirty part, except the last: remove it with or without its indexes, empty it, cut it at
    a border.
    """
    case = cases[name]
    for partition in case.partitions:
        begins = case.first_dirty_offset(1, partition)
        plan = plan_folder(case.input(partition), first_dirty_offset=begins, cleaner_checkpoint=begins)
        inner = [i for i, s in enumerate(plan.input.segments[:-1]) if i and s.base_offset >= begins]
        assert inner
        for i in inner:
            s = plan.input.segments[i]
            before, after = plan.input.segments[:i], plan.input.segments[i + 1 :]
            bare = replace(s, index=None, time_index=None)
            half = borders((case.input(partition) / Path(s.path).name).read_bytes())
            half = half[len(half) // 2 - 1 : len(half) // 2] if len(half) > 1 else [0]
            orphan = SideFile(s.root, s.path.replace(".log", ".index"), s.base_offset)
            for made in (
                changed(plan, segments=(*before, *after)),
                changed(plan, segments=(*before, *after), orphans=(orphan,)),
                changed(plan, segments=(*before, replace(bare, size_bytes=0), *after)),
                changed(plan, segments=(*before, replace(bare, size_bytes=half[0]), *after)),
                changed(plan, segments=(*before, replace(s, size_bytes=half[0]), *after)),
            ):
                assert state(made) == "gap"
                accepting = changed(made, settings=replace(made.policy.settings, gaps="accept"))
                result = judged(accepting)
                if isinstance(result, Problem):  # cannot be accepted: a transaction was open across it
                    assert name.startswith("txn")
                    assert result.kind == "transaction" or result.expected.startswith("the end of the transaction")
                    continue
                assert any(g.last == after[0].base_offset - 1 for g in result.gaps)


@pytest.mark.parametrize("name", [n for n in case_names() if n.endswith("-more")])
def test_side_file_shows_a_missing_segment_below_the_checkpoint(cases: dict[str, Case], name: str) -> None:
    """A cleaner makes holes there, so only an index shows that a .log is missing, or short."""
    case = cases[name]
    for partition in case.partitions:
        begins = case.first_dirty_offset(1, partition)
        plan = plan_folder(case.input(partition), first_dirty_offset=begins, cleaner_checkpoint=begins)
        below = [i for i, s in enumerate(plan.input.segments) if i and s.base_offset < begins]
        assert below
        n_reported = 0
        for i in below:
            s = plan.input.segments[i]
            rest = (*plan.input.segments[:i], *plan.input.segments[i + 1 :])
            orphan = SideFile(s.root, s.path.replace(".log", ".index"), s.base_offset)
            assert state(changed(plan, segments=rest)) == "fine"  # nothing shows the loss
            assert state(changed(plan, segments=rest, orphans=(orphan,))) == "gap"
            empty = changed(
                plan, segments=(*plan.input.segments[:i], replace(s, size_bytes=0), *plan.input.segments[i + 1 :])
            )
            log = case.input(partition) / Path(s.path).name
            entries = sum(log.with_suffix(kind).stat().st_size for kind in (".index", ".timeindex"))
            assert state(empty) == ("gap" if entries else "fine")  # indexes of few batches hold nothing
            n_reported += bool(entries)
        assert n_reported


# -- one log, whose files are taken away


def remove(part: Partition, base: int, *kinds: str) -> None:
    for kind in kinds or ("log", "index", "timeindex"):
        (part.folder / segment_file(base, kind)).unlink()


def checkpoint(part: Partition, name: str, offset: int) -> None:
    (part.root / f"{name}-checkpoint").write_text(f"0\n1\nt 0 {offset}\n")


def expect_gap(part: Partition, path: str) -> Problem:
    """Check that the partition is uncleanable, that verify finds the gap at the same file, and that `gaps = "accept"`
    turns it into a note. Return the problem.
    """
    result = part.compact()
    assert result.problem is not None and result.status == "uncleanable"
    assert (result.problem.kind, result.problem.state, result.problem.path) == ("gap", "gap", f"t-0/{path}")
    assert ("gap", f"t-0/{path}") in [(p.kind, p.path) for p in part.verify().problems]
    plan = part.plan()
    accepted = part.compact(plan=changed(plan, settings=replace(plan.policy.settings, gaps="accept")))
    assert accepted.status == "cleaned" and accepted.notes
    return result.problem


def test_missing_inner_segment_is_a_gap(part: Partition) -> None:
    remove(part, INNER)
    problem = expect_gap(part, segment_file(2 * INNER, "log"))
    assert f"begins at offset {INNER}" in problem.expected and "--set gaps=accept" in problem.hint
    plan = part.plan()
    accepted = part.compact(plan=changed(plan, settings=replace(plan.policy.settings, gaps="accept")))
    assert accepted.log.gaps == (Gap(INNER, 2 * INNER - 1, 0, plan.input.segments[0].size_bytes),)
    assert any(f"no segment holds offsets {INNER} to {2 * INNER - 1}" in note for note in accepted.notes)


def test_index_without_a_log_is_a_gap(part: Partition) -> None:
    remove(part, INNER, "log", "timeindex")
    expect_gap(part, segment_file(INNER, "index"))


def test_index_of_a_log_marked_as_deleted_is_no_gap(part: Partition) -> None:
    """A broker renames the .log first; retention removed the first segment, and the broker was killed in between."""
    log = part.log(0)
    log.rename(log.with_name(log.name + ".deleted"))
    (part.folder / "leader-epoch-checkpoint").write_text(f"0\n1\n3 {INNER}\n")  # a broker moves it up before
    assert part.compact().status == "cleaned"
    assert not part.verify().problems


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_index_below_the_first_segment_is_a_gap(part: Partition, kind: str) -> None:
    remove(part, 0, "log")
    remove(part, 0, "index" if kind == "timeindex" else "timeindex")
    expect_gap(part, segment_file(0, kind))
    checkpoint(part, "log-start-offset", INNER)
    assert part.compact().status == "cleaned"
    assert not part.verify().problems


def test_index_above_the_last_segment_is_a_gap(part: Partition) -> None:
    (part.folder / segment_file(END, "index")).write_bytes(b"")
    expect_gap(part, segment_file(END, "index"))


def test_missing_first_segment_is_a_gap_if_a_file_shows_it(part: Partition) -> None:
    """The first leader epoch states where the log began; a broker that deletes the beginning moves this offset up."""
    remove(part, 0)
    expect_gap(part, "leader-epoch-checkpoint")
    (part.folder / "leader-epoch-checkpoint").write_text(f"0\n1\n3 {INNER}\n")
    assert part.compact().status == "cleaned"
    assert not part.verify().problems
    (part.folder / "leader-epoch-checkpoint").write_text("0\n1\n3 0\n")
    checkpoint(part, "log-start-offset", INNER)
    assert part.compact().status == "cleaned"
    assert not part.verify().problems


def test_truncated_last_segment_is_a_gap_by_index_or_high_watermark(part: Partition) -> None:
    part.log(ACTIVE).write_bytes(b"")
    result = part.compact()
    assert result.status == "cleaned"
    assert any("it may be cut short" in note for note in result.notes)
    remove(part, ACTIVE, "index", "timeindex")
    checkpoint(part, "replication-offset", END)
    plan = changed(part.plan(), high_watermark=END)
    assert any("its high watermark" in note for note in part.compact(plan=plan).notes)
    sealed = part.compact(plan=changed(plan, sealed=True)).problem
    assert sealed is not None and (sealed.kind, sealed.path) == ("gap", "replication-offset-checkpoint")


TXN_OVER_A_HOLE = {
    "committed before it": (
        "{pid=7 txn} a=1 || {pid=7 commit} | {pid=7 txn} b=1 || {pid=7 txn} c=1 | {pid=7 abort} | d=1 || e=1"
    ),
    "aborted before it": "{pid=7 txn} a=1 || {pid=7 abort} | b=1 || {pid=7 txn} c=1 | {pid=7 commit} | d=1 || e=1",
}


@pytest.mark.parametrize("text", TXN_OVER_A_HOLE.values(), ids=TXN_OVER_A_HOLE)
def test_transaction_without_its_end_is_a_gap(tmp_path: Path, text: str) -> None:
    """The producer's next marker belongs to another transaction: the outcome of this one is unknown."""
    write_partition(tmp_path / "t-0", text)
    hidden = files_in(tmp_path / "t-0")[1]
    for path in files_in(tmp_path / "t-0", f"{hidden.stem}.*"):
        path.unlink()
    plan = changed(plan_folder(tmp_path / "t-0"), sealed=True)
    assert state(plan) == "gap"
    result = judged(changed(plan, settings=replace(plan.policy.settings, gaps="accept")))
    assert isinstance(result, Problem)
    assert (result.state, result.expected) == ("gap", "the end of the transaction of producer 7 at offset 0")


@pytest.mark.parametrize("snapshots", [(4, 5, 6), (6,), ()])
def test_transaction_end_known_only_by_a_snapshot_is_a_gap(tmp_path: Path, snapshots: tuple[int, ...]) -> None:
    """A snapshot behind the gap shows that the transaction ended, but not its outcome. Without a snapshot the
    transaction is open, and all records from its first one are withheld.
    """
    folder = tmp_path / "t-0"
    write_partition(folder, "a=1 | {pid=7 txn} a=2 b=1 || {pid=7 abort} || c=1 || d=1")
    for path in [*files_in(folder, f"{files_in(folder)[1].stem}.*"), *files_in(folder, "*.snapshot")]:
        if path.suffix != ".snapshot" or int(path.stem) not in snapshots:
            path.unlink(missing_ok=True)
    plan = plan_folder(folder)
    result = judged(changed(plan, settings=replace(plan.policy.settings, gaps="accept")))
    if not snapshots:
        assert isinstance(result, PartitionResult) and result.status == "not_due"
        return
    assert isinstance(result, Problem)
    assert (result.state, result.expected) == ("gap", "the end of the transaction of producer 7 at offset 1")


def test_marker_missing_in_the_index_is_no_gap(tmp_path: Path) -> None:
    """The marker lies below the checkpoint, where a hole proves nothing: the entry of the next one begins above
    committed data.
    """
    folder = tmp_path / "t-0"
    write_partition(folder, TXN_OVER_A_HOLE["committed before it"])
    hidden = files_in(folder)[1]
    for path in files_in(folder, f"{hidden.stem}.*"):
        path.unlink()
    third = files_in(folder)[1]
    entry = np.array([(0, 7, 2, 4, 5)], transaction_index.ENTRY)
    third.with_suffix(".txnindex").write_bytes(transaction_index.write(entry))
    plan = changed(plan_folder(folder, first_dirty_offset=3, cleaner_checkpoint=3), sealed=True)
    result = judged(plan)
    assert isinstance(result, Problem)
    assert (result.kind, result.path) == ("transaction", f"t-0/{third.stem}.txnindex")
    third.with_suffix(".txnindex").unlink()
    assert state(changed(plan_folder(folder, first_dirty_offset=3, cleaner_checkpoint=3), sealed=True)) == "fine"


@pytest.mark.parametrize("later", ["{pid=7 txn} c=1 | {pid=7 commit}", "c=1"], ids=["its next marker", "a snapshot"])
@pytest.mark.parametrize("cleaned", [0, 9])
def test_marker_known_only_by_the_index_is_a_gap(tmp_path: Path, later: str, cleaned: int) -> None:
    """Its segment was cut before it, and thinned batches above, or the checkpoint, suggest that a cleaner made the
    hole. By the other markers the aborted a=2 counts, and supersedes the committed a=1.
    """
    folder = tmp_path / "t-0"
    write_partition(
        folder, f"a=1 || {{pid=7 txn}} a=2@1~9 | {{pid=7 abort ts=5}} || {later} | {{base=8}} d=1 || e=1 || f=1"
    )
    log = files_in(folder)[1]
    log.write_bytes(log.read_bytes()[: int(open_segment(log).headers()["position"][1])])

    def found(log_start: int = 0) -> Problem | Analysis | PartitionResult:
        plan = plan_folder(folder, first_dirty_offset=cleaned, cleaner_checkpoint=cleaned, log_start_offset=log_start)
        return judged(changed(plan, sealed=True, settings=replace(plan.policy.settings, gaps="accept")))

    problem = found()
    assert isinstance(problem, Problem)
    assert (problem.kind, problem.path) == ("transaction", f"t-0/{log.stem}.txnindex")
    assert problem.expected == "the ABORT marker of producer 7 at offset 2, after its data at 1"
    is_open = "commit" not in later  # at the log start: then nothing is cleanable
    assert isinstance(found(1), PartitionResult if is_open else Problem)
    assert isinstance(found(2), Analysis)  # the data is never read
    for first, cleaned_range in ((2, Analysis), (1, Problem)):  # an entry whose data is gone, and one with data left
        entry = np.array([(0, 7, first, 2, 3)], transaction_index.ENTRY)
        log.with_suffix(".txnindex").write_bytes(transaction_index.write(entry))
        assert isinstance(found(), cleaned_range)
    log.with_suffix(".txnindex").unlink()
    assert isinstance(found(), Analysis)


def test_indexes_without_logs_are_a_gap(part: Partition) -> None:
    for number in range(SEGMENTS):
        remove(part, number * SEGMENT_OFFSETS, "log")
    problem = part.listed().problem
    assert problem is not None
    assert (problem.kind, problem.state, problem.path) == ("gap", "gap", f"t-0/{segment_file(0, 'index')}")


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_a_log_cut_at_a_batch_border_below_the_checkpoint(part: Partition, kind: str) -> None:
    """Only its offset index shows the loss. (A time index ends with the last batch of the segment.)"""
    data = part.log(INNER).read_bytes()
    part.log(INNER).write_bytes(data[: borders(data)[0]])
    remove(part, INNER, "index" if kind == "timeindex" else "timeindex")
    checkpoint(part, "cleaner-offset", ACTIVE)
    result = part.compact()
    assert result.problem is not None
    assert (result.problem.kind, result.problem.path) == ("gap", f"t-0/{segment_file(INNER, 'log')}")
    assert result.problem.position == borders(data)[0]
    assert f"up to offset {2 * INNER - 1}" in result.problem.expected
    assert {p.kind for p in part.verify().problems} == {"index"}  # the log contradicts the index


def test_index_of_a_different_log_shows_no_gap(part: Partition) -> None:
    """Its offsets lie beyond the next segment."""
    part.write(INNER, [batch_at(INNER)])
    (part.folder / segment_file(INNER, "index")).write_bytes(b"".join(n.to_bytes(4, "big") for n in (5000, 90_000)))
    (part.folder / segment_file(INNER, "timeindex")).unlink()
    checkpoint(part, "cleaner-offset", ACTIVE)
    assert part.compact().status == "cleaned"


def test_truncated_last_segment_is_a_gap_if_proven(part: Partition) -> None:
    """While a segment is written, its index may be the younger copy; if the archive is sealed, or a snapshot proves
    more, it is a gap.
    """
    data = part.log(ACTIVE).read_bytes()
    part.log(ACTIVE).write_bytes(data[: borders(data)[0]])
    assert part.compact().status == "cleaned"
    sealed = part.compact(sealed=True).problem
    assert sealed is not None and (sealed.kind, sealed.path) == ("gap", f"t-0/{segment_file(ACTIVE, 'log')}")
    (part.folder / segment_file(END, "snapshot")).write_bytes(b"")
    problem = part.compact().problem
    assert problem is not None and (problem.kind, problem.path) == ("gap", f"t-0/{segment_file(END, 'snapshot')}")


@pytest.mark.parametrize(("offset", "how_far"), [(INNER, "nothing of it was read"), (INNER + RECORDS, "read up to")])
def test_partly_read_segment_has_no_gap_at_its_end(part: Partition, offset: int, how_far: str) -> None:
    done = judged(changed(part.plan(), high_watermark=offset))
    assert not isinstance(done, Problem)
    [note] = [note for note in done.notes if "high watermark" in note]
    assert f"{INNER:020d}.log: {how_far}" in note
    assert "-1" not in note


def test_gaps_above_the_high_watermark_are_ignored(part: Partition) -> None:
    remove(part, 2 * INNER)
    (part.folder / segment_file(END + 5, "snapshot")).write_bytes(b"")
    checkpoint(part, "replication-offset", INNER + RECORDS)
    plan = changed(part.plan(), high_watermark=INNER + RECORDS)
    assert part.compact(plan=plan).status == "cleaned"


# -- what a cleaner leaves


def thinned(base: int, keep: tuple[int, ...]) -> list:
    """Return the batches that a cleaner kept of a segment."""
    return [batch_at(base + i * RECORDS) for i in keep]


def test_replica_copied_from_a_cleaned_leader_has_no_gap(part: Partition) -> None:
    """The log has holes between its segments and inside them, and no checkpoint: the hole at 12 lies below cleaned
    batches.
    """
    part.write(0, thinned(0, (0, 1)))
    part.write(INNER, thinned(INNER, (0, 2)))
    result = part.compact()
    assert result.status == "cleaned"
    assert result.log.gaps == (Gap(2 * RECORDS, INNER - 1, 0, part.log(0).stat().st_size, lost=False),)
    assert any("(removed by a cleaner)" in note for note in result.notes)
    checked = part.verify()
    assert not checked.problems and any("a cleaner removed them" in note for note in checked.notes)


def test_cleaned_batches_below_a_gap_do_not_explain_it(part: Partition) -> None:
    """The cleaner has cleaned the first segment, and a later file is missing."""
    part.write(0, thinned(0, (0, 2)))
    remove(part, 2 * INNER)
    expect_gap(part, segment_file(ACTIVE, "log"))


def test_cleaned_batches_below_the_checkpoint_explain_no_gap_above_it(part: Partition) -> None:
    part.write(INNER, thinned(INNER, (0, 2)))
    checkpoint(part, "cleaner-offset", 2 * INNER)
    remove(part, 2 * INNER)
    expect_gap(part, segment_file(ACTIVE, "log"))


CONTINUES = "{pid=1} a=1 || %s || {pid=1} b=5 | {pid=1} c=6 || g=7 || h=8"
LOST_FILES = {
    "another producer's": CONTINUES % "{pid=2} w=1 | {pid=2} x=2 | {pid=2} y=3 | {pid=2} z=4",
    "without a producer": CONTINUES % "w=1 | x=2 | y=3 | z=4",
    "a sequence jumps": CONTINUES % "{pid=1} w=1 | {pid=1} x=2 | {pid=1} y=3 | {pid=1} z=4",
    "a new producer": "{pid=1} a=1 || {pid=1} w=1 | {pid=1} x=2 || {pid=2} b=3 | {pid=2} c=4 || g=5 || h=6",
    "several producers": "{pid=1} a=1 | {pid=2} v=1 || {pid=3} w=1 | {pid=3} x=2 || {pid=2} b=5 | {pid=1} c=6 || g=7",
    "no sequences": "a=1 || w=1 | x=2 || b=3 || g=4 || h=5",
}


@pytest.mark.parametrize("text", LOST_FILES.values(), ids=LOST_FILES)
def test_missing_file_of_single_record_batches_is_a_gap(tmp_path: Path, text: str) -> None:
    """No batch shows a cleaner's work and no sequence shows a loss for certain, so a hole at a border is a gap."""
    files = write_partition(tmp_path / "a/t-0", text)
    for path in files_in(tmp_path / "a/t-0", f"{files.bases[1]:020d}.*"):
        path.unlink()
    problem = expect_gap(Partition(tmp_path / "a", tmp_path / "store"), segment_file(files.bases[2], "log"))
    assert "if this topic was ever compacted, a cleaner removed whole batches at this border" in problem.hint
    assert 'gaps = "accept" below [topics."t"] in the settings file (--config)' in problem.hint


def test_offsets_removed_at_a_segment_boundary_are_no_gap(tmp_path: Path) -> None:
    """The log gives no evidence, because the sequences of producer 1 continue across the hole."""
    write_partition(tmp_path / "lost", LOST_FILES["another producer's"])
    write_partition(tmp_path / "cleaned", "{pid=1} a=1 || {pid=1} b=5 | {pid=1} c=6 || g=7 || h=8", bases={1: 5})
    left = {name: {p.name: p.read_bytes() for p in files_in(tmp_path / name)} for name in ("lost", "cleaned")}
    del left["lost"][segment_file(1, "log")]
    assert left["lost"] == left["cleaned"]


HORIZON = "{pid=1 horizon=1700000000000}"


@pytest.mark.parametrize(
    ("text", "state_of_hole"),
    [
        (f"a=1 || b=5 | {HORIZON} c=- || g=7 || h=8", "fine"),
        (f"a=1 || b=5 | c=6 || {HORIZON} g=- || h=8", "fine"),
        (f"{HORIZON} a=- || b=5 | c=6 || g=7 || h=8", "fine"),
        ("a=1 || b=5 | c=- || g=7 || h=8", "gap"),
    ],
)
def test_delete_horizon_shows_that_a_cleaner_removed_offsets(tmp_path: Path, text: str, state_of_hole: str) -> None:
    """Only a cleaner sets one: it was at that batch, so it has passed the hole, or the end of the segment before it."""
    write_partition(tmp_path / "a/t-0", text, bases={1: 5})
    part = Partition(tmp_path / "a", tmp_path / "store")
    assert state(part.plan()) == state_of_hole
    assert bool(part.verify().problems) == (state_of_hole == "gap")


def test_delete_horizon_below_the_previous_segment_explains_no_gap(tmp_path: Path) -> None:
    write_partition(tmp_path / "a/t-0", f"{HORIZON} a=- || b=1 || c=5 || g=6 || h=7", bases={2: 5})
    expect_gap(Partition(tmp_path / "a", tmp_path / "store"), segment_file(5, "log"))


def test_beginning_in_remote_storage_is_no_gap(part: Partition) -> None:
    """Kafka writes a log start of 0 for topics with tiered storage alone; any other may be that of a lost segment."""
    remove(part, 0)
    expect_gap(part, "leader-epoch-checkpoint")
    for start in (1, INNER - 1):  # by DeleteRecords, in the segment that is lost; or of a tiered topic with retention
        checkpoint(part, "log-start-offset", start)
        (part.folder / "leader-epoch-checkpoint").write_text(f"0\n1\n3 {start}\n")
        problem = expect_gap(part, "leader-epoch-checkpoint")
        assert "if remote storage has the beginning, put its folder into the archive" in problem.hint
    checkpoint(part, "log-start-offset", 0)
    (part.folder / "leader-epoch-checkpoint").write_text("0\n1\n3 0\n")
    result = part.compact()
    assert (result.status, result.log.gaps, result.log.log_start_offset) == ("cleaned", (), INNER)
    assert not part.verify().problems
    remove(part, 2 * INNER)  # above the first segment, all is as in any log
    expect_gap(part, segment_file(ACTIVE, "log"))


def test_gap_across_the_checkpoint_is_reported_from_the_checkpoint_on(part: Partition) -> None:
    """The part from the checkpoint on is missing; a cleaner may have removed the part below it."""
    remove(part, INNER)
    checkpoint(part, "cleaner-offset", INNER + RECORDS)
    problem = expect_gap(part, segment_file(2 * INNER, "log"))
    assert f"begins at offset {INNER + RECORDS}" in problem.expected


def test_first_thinned_offset_equals_that_of_verify() -> None:
    """Draw headers: both functions and a loop by the definition agree."""
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
            row["magic"], row["attributes"] = draw.integers(0, 4), draw.choice([0, DELETE_HORIZON_MASK], p=[0.9, 0.1])
            at += size
        expected, before = -1, start - 1
        for row in batches:
            base, last = int(row["base_offset"]), int(row["last_offset"])
            horizon = row["magic"] >= 2 and row["attributes"] & DELETE_HORIZON_MASK
            if base >= 0 and (base != before + 1 or row["records_count"] < last - base + 1 or horizon):
                expected = last
            before = last
        assert thinned_offset(batches, start - 1) == expected
        twin = Thinned(start)
        twin.see(batches)
        assert twin.last == expected


# -- checkpoints that belong to another log


@pytest.mark.parametrize("name", ["log-start-offset", "cleaner-offset"])
@pytest.mark.parametrize("offset", [END + 1, 1_000_000])
def test_checkpoint_above_the_log_end_is_a_gap(part: Partition, name: str, offset: int) -> None:
    checkpoint(part, name, offset)
    problem = part.compact().problem
    assert problem is not None
    assert (problem.kind, problem.state, problem.path) == ("side_file", "diverged", "t-0")
    assert f"{END}" in problem.expected and f"{offset}" in problem.found and "--reset" in problem.hint
    assert any(p.kind == "side_file" for p in part.verify().problems)


@pytest.mark.parametrize("name", ["log-start-offset", "cleaner-offset"])
def test_checkpoint_at_the_log_end_is_no_gap(part: Partition, name: str) -> None:
    """Everything was deleted, or cleaned: a broker may leave a log so."""
    checkpoint(part, name, END)
    assert part.compact().status in ("cleaned", "not_due")


def test_high_watermark_below_the_checkpoints_is_no_gap(part: Partition) -> None:
    """A broker writes it every five seconds; offsets that were cleaned, or given up, lay below it then."""
    checkpoint(part, "cleaner-offset", 2 * INNER)
    plan = changed(part.plan(), high_watermark=INNER)
    assert part.compact(plan=plan).status in ("cleaned", "not_due")


# -- as many holes as segments


def many_holes(tmp_path: Path, n: int, *, thinned: bool) -> PartitionPlan:
    """Return the plan of a log with one record a segment and a hole behind each.

    thinned: the last segment shows that a cleaner removed the offsets of the holes.
    """
    folder = tmp_path / f"{n}" / "t-0"
    folder.mkdir(parents=True)
    for base in range(0, 2 * n, 2):
        batches = [batch_at(base, 1), batch_at(base + 2, 1)] if thinned and base == 2 * n - 2 else [batch_at(base, 1)]
        (folder / segment_file(base, "log")).write_bytes(b"".join(batch.data for batch in batches))
    return plan_folder(folder)


def lines_run(work: Callable[[], object]) -> int:
    """Return how many lines of the project's code, and rounds of its comprehensions, the work takes: the same each
    time.
    """
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if "/udfs/" not in frame.f_code.co_filename and "/jobs/" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.long
@pytest.mark.parametrize("thinned", [True, False], ids=["a cleaner's", "accepted"])
def test_cost_is_linear_in_the_number_of_gaps(tmp_path: Path, thinned: bool) -> None:
    few, many = (work_of_many_holes(tmp_path, n, thinned=thinned) for n in (30, 120))
    assert {name: many[name] < 4.5 * few[name] for name in few} == dict.fromkeys(few, True), (few, many)


def work_of_many_holes(tmp_path: Path, n: int, *, thinned: bool) -> dict[str, int]:
    """Return how many lines each check runs; also with holes that a run before accepted, and with an index for each
    segment.
    """
    plan = many_holes(tmp_path, n, thinned=thinned)
    orphans = tuple(SideFile("", f"{2 * i}.index", 2 * i) for i in range(n))  # their logs are there
    plan = changed(plan, orphans=orphans, settings=replace(plan.policy.settings, gaps="accept"))
    scans = scan_all(plan, ChunkBuffer(1 << 20))
    gaps = check_gaps(plan, scans, 2 * n + 1, [])
    assert len(gaps) == n - 1 and {gap.lost for gap in gaps} == {not thinned}
    again = changed(plan, known_gaps=gaps)
    rows = [(s.first_offset, max(s.thinned_offset, -1)) for s in scans]
    facts = [(f"{base}.log", base, base + 1, last, True) for base, last in rows]
    archived = ArchivedPartition("t", 0, "", "t-0", list(plan.input.segments))
    checkpoint: Any = None  # unused unless something came back
    return {
        "compact": lines_run(lambda: check_gaps(plan, scans, 2 * n + 1, [])),
        "compact again": lines_run(lambda: check_gaps(again, scans, 2 * n + 1, [])),
        "what came back": lines_run(lambda: refilled_gap_problem(archived, checkpoint, gaps)),
        "verify": lines_run(lambda: list(gap_problems(CheckPlan("t", 0, "t", "", (), orphans=orphans), facts))),
    }


def test_markers_are_searched_once_for_all_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = many_holes(tmp_path, 5, thinned=False)
    scans, looked = scan_all(plan, ChunkBuffer(1 << 20)), []
    monkeypatch.setattr(transactions, "markers_behind", lambda rows: looked.append(len(rows)) or np.full(len(rows), 7))
    txn = np.zeros(1, transactions.TXN_BATCH)
    txn["base_offset"], txn["last_offset"], txn["control_type"] = 2, 2, -1
    scans[1] = replace(scans[1], transactional=txn)
    gaps = [Gap(first, first) for first in (7, 1, 5, 3)]
    missing = np.empty(0, transactions.OPEN_BATCH)
    with pytest.raises(LogFormatError) as caught:
        check_ends_known(plan, scans, gaps, 3, missing)
    assert "offsets 3 to 3" in caught.value.found
    # Its marker, at 7, lies in front of the one, and the other is below it
    check_ends_known(plan, scans, gaps[:2], 3, missing)
    assert looked == [1, 1]
