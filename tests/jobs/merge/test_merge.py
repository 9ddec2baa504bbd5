"""`merge`: the choice of batches among copies, refused inputs, and the report."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from uuid import UUID

import pytest

from examples import make_replicas
from lastkey.jobs.command import cli
from lastkey.jobs.command.config import parse_config
from lastkey.jobs.command.options import VerifyOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.errors import LOG_DIRECTORY_IN_USE, NOT_EMPTY, MissingPathError, UsageError
from lastkey.jobs.merge.report import MergeReport
from lastkey.jobs.verify import job as verify
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.listing import Segment
from lastkey.logformat.side_files import checkpoints, producer_snapshot, transaction_index
from lastkey.udfs.merge import merge_partition, write_log
from lastkey.udfs.merge.copies import MergedPartition
from lastkey.udfs.merge.write_log import NewSegment
from tests.builders.archives import borders, offset_checkpoint
from tests.builders.damage import edit, flip
from tests.builders.errors import raises_kind
from tests.builders.logs import log_text, write_partition
from tests.builders.replicas import CONFIG, FOLDER, compacted, run_merge
from tests.builders.trees import files_in, read_tree

ROOT = Path(__file__).resolve().parents[3]
LOG = "a=1 b=1 | a=2 | b=2 c=1 || {leader=1} a=3 | {leader=1} d=1 || {leader=1} a=4 | {leader=2} e=1 e=2"
LATER = "|| {leader=2} f=1 | {leader=2} g=1"


def write(folder: Path, text: str = LOG, **given: object) -> Path:
    write_partition(folder / FOLDER, text, **given)  # type: ignore[arg-type]
    return folder


def copies(root: Path, n: int = 3, text: str = LOG) -> list[Path]:
    return [write(root / f"broker-{i + 1}", text) for i in range(n)]


def log(copy: Path, number: int) -> Path:
    return files_in(copy / FOLDER)[number]


def flip_bit(path: Path, batch: int) -> None:
    """Flip a bit in the last record of a batch."""
    flip(path, borders(path.read_bytes())[batch] - 2)


def single_partition(report: MergeReport) -> MergedPartition:
    (partition,) = report.partitions
    return partition


def text(directory: Path) -> str:
    return log_text(*files_in(directory / FOLDER))


def check(directory: Path) -> None:
    report = verify.run(VerifyOptions(archive=str(directory), config=CONFIG), Silent())
    assert report.exit_code == 0, report.to_text()


def open_files(folder: Path) -> list[str]:
    """Return the files below a folder that this process has open."""
    targets = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of the listing itself
            targets.append(str(descriptor.readlink()))
    return [target for target in targets if target.startswith(str(folder))]


def test_equal_copies_are_copied_byte_for_byte(tmp_path: Path) -> None:
    of = copies(tmp_path)
    before = read_tree(tmp_path / "broker-1" / FOLDER)
    report = run_merge(of, tmp_path / "out")
    assert report.exit_code == 0, report.to_text()
    files = read_tree(tmp_path / "out" / FOLDER)
    assert {name: data for name, data in files.items() if ".snapshot" not in name} == {
        name: data for name, data in before.items() if ".snapshot" not in name
    }
    (ranges,) = single_partition(report).ranges
    assert (ranges.first, ranges.last, ranges.copy, ranges.reason) == (0, 9, "broker-1", "largest")
    assert checkpoints.read_offset_checkpoint(
        (tmp_path / "out" / "recovery-point-offset-checkpoint").read_bytes(), ""
    ) == {("t", 0): 10}
    assert (tmp_path / "out" / ".kafka_cleanshutdown").exists()
    assert read_tree(tmp_path / "broker-1" / FOLDER) == before
    check(tmp_path / "out")


def test_damaged_ranges_are_read_from_other_copies(tmp_path: Path) -> None:
    of = copies(tmp_path)
    whole = text(of[0])
    log(of[0], 1).unlink()
    flip_bit(log(of[1], 0), 0)
    log(of[1], 2).write_bytes(log(of[1], 2).read_bytes()[:-10])
    flip_bit(log(of[2], 2), 0)
    report = run_merge(of, tmp_path / "out")
    assert report.exit_code == 0, report.to_text()
    assert text(tmp_path / "out") == whole
    p = single_partition(report)
    lacks = {c.copy: [(lack.first, lack.until, lack.reason) for lack in c.lacks] for c in p.copies}
    assert lacks["broker-1"] == [(5, 7, "missing")]
    assert lacks["broker-2"][0] == (0, 2, "damaged")
    assert "crc" in report.to_text()
    check(tmp_path / "out")


def test_stray_copy_is_merged(tmp_path: Path) -> None:
    """It may be the only copy. Two folders of a partition in one copy are a problem of that copy alone."""
    of = copies(tmp_path, 2)
    whole = text(of[0])
    flip_bit(log(of[0], 0), 0)
    flip_bit(log(of[0], 1), 0)
    stray = of[1] / f"{FOLDER}.0123456789abcdef0123456789abcdef-stray"
    (of[1] / FOLDER).rename(stray)
    report = run_merge(of, tmp_path / "alone")
    assert report.exit_code == 3 and any(stray.name in note for note in report.notes)
    report = run_merge(of, tmp_path / "out", folders="stray")
    assert report.exit_code == 0, report.to_text()
    assert text(tmp_path / "out") == whole
    check(tmp_path / "out")
    write(of[1], "x=1")
    report = run_merge(of, tmp_path / "both", folders="stray")
    assert report.exit_code == 3 and "the same partition in" in report.to_text()


def test_replicas_below_one_folder_are_merged(tmp_path: Path) -> None:
    copies(tmp_path / "cluster")
    report = run_merge(tmp_path / "cluster", tmp_path / "out", layout="replicas")
    assert report.exit_code == 0
    assert [c.copy for c in single_partition(report).copies] == ["broker-1", "broker-2", "broker-3"]
    with pytest.raises(UsageError, match="leave out --layout"):
        run_merge(tmp_path / "cluster" / "broker-1", tmp_path / "other", layout="replicas")


def test_dry_run_writes_nothing_and_reports_the_same(tmp_path: Path) -> None:
    of = copies(tmp_path)
    flip_bit(log(of[0], 0), 0)
    dry = run_merge(of, tmp_path / "out", dry_run=True)
    assert not (tmp_path / "out").exists()
    real = run_merge(of, tmp_path / "out")
    assert single_partition(dry).ranges == single_partition(real).ranges
    assert "would be merged" in dry.to_text()


def test_the_highest_leader_epoch_wins(tmp_path: Path) -> None:
    """An unclean election: broker 2 led in epoch 3 without the last records of broker 1, which wrote on in epoch 2."""
    one = write(tmp_path / "broker-1", f"{LOG} {LATER}")
    other = write(tmp_path / "broker-2", f"{LOG} || {{leader=3}} x=1")
    offset_checkpoint(one / "replication-offset-checkpoint", {"t 0": 12})  # high watermark of broker 1
    report = run_merge([one, other], tmp_path / "out")
    assert report.exit_code == 0, report.to_text()
    assert text(tmp_path / "out") == text(other)
    (lost,) = single_partition(report).copies[0].losing
    assert (lost.first, lost.last, lost.batches, lost.leader_epoch) == (10, 11, 2, 2)
    assert "broker-1: left out: offsets 10 to 11, 2 batches of leader epoch 2" in report.to_text()
    assert single_partition(report).leader_epochs == ((0, 0), (1, 5), (2, 8), (3, 10))
    check(tmp_path / "out")


@pytest.mark.parametrize("lost", ["broker-1", "broker-2", "both"])
def test_lineage_is_read_from_batches_without_checkpoints(tmp_path: Path, lost: str) -> None:
    one = write(tmp_path / "broker-1", f"{LOG} {LATER}")
    other = write(tmp_path / "broker-2", f"{LOG} || {{leader=3}} x=1 | {{leader=3}} y=1")
    for copy in (one, other):
        if lost in (copy.name, "both"):
            (copy / FOLDER / "leader-epoch-checkpoint").unlink()
    report = run_merge([one, other], tmp_path / "out")
    assert text(tmp_path / "out") == text(other)
    assert single_partition(report).copies[0].losing


def test_wrong_epoch_checkpoint_is_ignored(tmp_path: Path) -> None:
    of = copies(tmp_path)
    wrong = checkpoints.write_leader_epochs([(0, 0), (7, 2)])
    (of[0] / FOLDER / "leader-epoch-checkpoint").write_bytes(wrong)
    report = run_merge(of, tmp_path / "out")
    assert text(tmp_path / "out") == text(of[1])
    assert "contradicts the batches beside it; not used" in report.to_text()


def test_epoch_without_records_ends_earlier_epochs(tmp_path: Path) -> None:
    one = write(tmp_path / "broker-1", f"{LOG} {LATER}")
    other = write(tmp_path / "broker-2")
    path = other / FOLDER / "leader-epoch-checkpoint"
    path.write_bytes(checkpoints.write_leader_epochs([(0, 0), (1, 5), (2, 8), (3, 10)]))
    report = run_merge([one, other], tmp_path / "out")
    assert text(tmp_path / "out") == text(other)
    assert single_partition(report).copies[0].losing[0].first == 10


def test_truncated_copy_of_the_leader_is_completed(tmp_path: Path) -> None:
    """Both are of one leader epoch, so the longer copy is not another lineage."""
    one = write(tmp_path / "broker-1", f"{LOG} {LATER}")
    other = write(tmp_path / "broker-2")
    report = run_merge([one, other], tmp_path / "out")
    assert text(tmp_path / "out") == text(one)
    assert not single_partition(report).copies[0].losing


def test_different_batches_of_one_epoch_are_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "broker-1")
    other = write(tmp_path / "broker-2", LOG.replace("d=1", "d=9"))
    report = run_merge([one, other], tmp_path / "out")
    assert report.exit_code == 3
    assert single_partition(report).refused
    (problem,) = report.problems
    assert str(one) in problem.expected
    assert str(other) in problem.path
    assert not (tmp_path / "out" / FOLDER).exists()


def test_a_refused_partition_does_not_stop_the_others(tmp_path: Path) -> None:
    of = copies(tmp_path, 2)
    for copy, value in zip(of, "12", strict=True):
        write_partition(copy / "u-0", f"a={value} | b=1")
    report = run_merge(of, tmp_path / "out")
    assert [(p.topic, p.refused) for p in report.partitions] == [("t", False), ("u", True)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir()) == [FOLDER]
    check(tmp_path / "out")


def test_logs_that_never_agree_are_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "broker-1", "{leader=1} a=1 | {leader=1} b=1")
    other = write(tmp_path / "broker-2", "{leader=2} x=1 | {leader=2} y=1")
    report = run_merge([one, other], tmp_path / "out")
    assert single_partition(report).refused
    assert "another log" in report.to_text()


def test_other_topic_ids_are_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "broker-1")
    other = write(tmp_path / "broker-2", topic_id=UUID(int=77))
    report = run_merge([one, other], tmp_path / "out")
    assert report.exit_code == 3
    (problem,) = report.problems
    assert (str(one) in problem.expected, str(other) in problem.path) == (True, True)


def test_compacted_copy_is_used_only_for_missing_ranges(tmp_path: Path) -> None:
    one = write(tmp_path / "broker-1")
    other = compacted(one, tmp_path / "broker-2")
    whole = text(one)
    report = run_merge([other, one], tmp_path / "both")
    assert text(tmp_path / "both") == whole
    assert single_partition(report).ranges[0].copy == "broker-1"
    flip_bit(log(one, 1), 0)  # a=3, of which the cleaner left nothing
    flip_bit(log(one, 2), 1)  # the last batch, which the cleaner has kept
    report = run_merge([other, one], tmp_path / "out")
    assert report.exit_code == 0, report.to_text()
    assert "9:e=2" in text(tmp_path / "out")
    assert "a=3" not in text(tmp_path / "out")
    check(tmp_path / "out")


def test_gaps_are_reported_and_other_records_are_kept(tmp_path: Path) -> None:
    of = copies(tmp_path, 2)
    for copy in of:
        flip_bit(log(copy, 0), 1)
    offset_checkpoint(of[0] / "replication-offset-checkpoint", {"t 0": 12})
    report = run_merge(of, tmp_path / "out")
    assert report.exit_code == 3
    assert single_partition(report).gaps == [(2, 3), (10, 12)]
    assert "2:a=2" not in text(tmp_path / "out")
    assert "3:b=2" in text(tmp_path / "out")


def test_transactions_and_producers_are_rebuilt(tmp_path: Path) -> None:
    log_of = (
        "{pid=7 txn} a=1 | {pid=8 txn} b=1 | {pid=7 abort} || {pid=8 txn} b=2 | {pid=8 commit} | {pid=7 txn} a=2"
        " || {pid=7 commit} | c=1"
    )
    of = copies(tmp_path, 2, log_of)
    files = read_tree(of[0] / FOLDER)
    for path in [*of[0].rglob("*.txnindex"), *of[0].rglob("*.snapshot"), *of[1].rglob("*.txnindex")]:
        path.unlink()
    flip_bit(log(of[0], 1), 0)
    report = run_merge(of, tmp_path / "out")
    assert report.exit_code == 0, report.to_text()
    merged_files = read_tree(tmp_path / "out" / FOLDER)
    for name, data in files.items():
        if name.endswith(".txnindex") and data:
            assert (
                transaction_index.read(merged_files[name], name).tolist() == transaction_index.read(data, name).tolist()
            )
        elif name.endswith(".snapshot"):
            assert (
                producer_snapshot.read(merged_files[name], name).tolist() == producer_snapshot.read(data, name).tolist()
            )
    check(tmp_path / "out")


def test_cut_at_a_batch_boundary_is_detected_by_side_files(tmp_path: Path) -> None:
    of = copies(tmp_path, 2)
    for copy in of:
        ends = borders(log(copy, 2).read_bytes())
        log(copy, 2).write_bytes(log(copy, 2).read_bytes()[: ends[0]])
    report = run_merge(of, tmp_path / "out")  # the snapshot at the log end says how far it went
    assert single_partition(report).gaps == [(8, 10)]


def test_a_transaction_without_a_marker_is_reported(tmp_path: Path) -> None:
    of = copies(tmp_path, 2, "a=1 | {pid=7 txn} b=1 | c=1")
    report = run_merge(of, tmp_path / "out")
    assert "1 transactions have no marker" in report.to_text()
    assert "stops at offset 1" in report.to_text()


def test_marker_emptied_by_a_cleaner_is_accepted(tmp_path: Path) -> None:
    one = write(tmp_path / "broker-1", "a=1 | {pid=7 txn} b=1 | {pid=7 abort} | c=1")
    other = write(tmp_path / "broker-2", "a=1 | {pid=7 txn base=1 last=1} | {pid=7 txn control base=2 last=2} | c=1@3")
    report = run_merge([other, one], tmp_path / "out")
    assert report.exit_code == 0, report.to_text()
    assert text(tmp_path / "out") == text(one)
    check(tmp_path / "out")


def test_copies_cleaned_at_different_times_are_merged(tmp_path: Path) -> None:
    """Each cleaner sets a delete horizon of its own, so the bytes differ, and neither is another log."""
    one = write(tmp_path / "broker-1", "{horizon=1700000001000} a=- | b=1")
    other = write(tmp_path / "broker-2", "{horizon=1700000009000} a=- | b=1")
    report = run_merge([one, other], tmp_path / "out")
    assert report.exit_code == 0, report.to_text()
    check(tmp_path / "out")


def test_different_log_with_other_batch_boundaries_is_refused(tmp_path: Path) -> None:
    """Two copies agree, the third has other batches of the same epoch, none of which begins where theirs do."""
    of = copies(tmp_path, 2, "a=1 | b=1 c=1 | d=1 e=1 | f=1 g=1 | h=1")
    other = write(tmp_path / "broker-3", "a=1 | x=1 | y=1 z=1 | v=1 w=1 | u=1 | h=1")
    report = run_merge([*of, other], tmp_path / "out")
    assert single_partition(report).refused
    assert str(other) in report.to_text()


def test_aborted_data_without_its_marker_is_a_problem(tmp_path: Path) -> None:
    log_of = "{pid=7 txn} a=1 | {pid=7 abort} | {pid=7 txn} b=1 | {pid=7 commit}"
    of = copies(tmp_path, 2, log_of)
    for copy in of:
        flip_bit(log(copy, 0), 1)
    report = run_merge(of, tmp_path / "out")
    assert report.exit_code == 3
    assert "expected the ABORT marker of producer 7 at offset 1, found none in any sound copy" in report.to_text()


def test_batch_with_a_flipped_bit_in_its_leader_epoch_is_replaced(tmp_path: Path) -> None:
    """No checksum covers it. Another copy has the batch; if none has, its epoch is that of the log around it."""
    of = copies(tmp_path, 2)
    whole = read_tree(of[1] / FOLDER)
    edit(log(of[0], 1), 12, (1 << 20).to_bytes(4, "big"))
    run_merge(of, tmp_path / "one")
    assert read_tree(tmp_path / "one" / FOLDER)[log(of[1], 1).name] == whole[log(of[1], 1).name]
    edit(log(of[1], 1), 12, (1 << 22).to_bytes(4, "big"))
    report = run_merge(of, tmp_path / "two")
    assert read_tree(tmp_path / "two" / FOLDER)[log(of[1], 1).name] == whole[log(of[1], 1).name]
    assert single_partition(report).epochs_corrected == 1


def test_batch_with_a_flipped_bit_in_its_base_offset_is_replaced(tmp_path: Path) -> None:
    of = copies(tmp_path, 2)
    whole = text(of[1])
    at = borders(log(of[0], 2).read_bytes())[0]
    edit(log(of[0], 2), at, (10_000).to_bytes(8, "big"))  # the last batch: no other field of its copy contradicts it
    report = run_merge(of, tmp_path / "out")
    assert text(tmp_path / "out") == whole
    assert "wrong base offset, as another copy shows: 10000; left out" in report.to_text()


def test_batch_moved_onto_its_neighbour_is_replaced(tmp_path: Path) -> None:
    """A cleared bit gives the last batch of a segment the offsets of the one before. Nothing in its copy tells which of
    the two is right.
    """
    of = copies(tmp_path, 2, "a=1 | b=1 | c=1 || d=1 | e=1")
    whole = text(of[1])
    for number, batch in ((0, 2), (1, 1)):  # also the last batch of the log
        at = [0, *borders(log(of[0], number).read_bytes())][batch]
        edit(log(of[0], number), at, (3 * number + batch - 1).to_bytes(8, "big"))
    report = run_merge(of, tmp_path / "out")
    assert report.exit_code == 0, report.to_text()
    assert text(tmp_path / "out") == whole


@pytest.mark.parametrize(
    ("one", "other"), [("p=1 | d=1 | e=1 | q=1", "p=1 | e=1 | d=1 | q=1"), ("p=1 | d=1 | g=1", "p=1 | f=1 | d=1 | g=1")]
)
def test_copies_with_equal_batches_at_other_offsets_are_refused(tmp_path: Path, one: str, other: str) -> None:
    """Each copy has another batch where the other copy has an equal one: neither order is the log's."""
    same_time = "~1700000000000"
    of = [
        write(tmp_path / f"broker-{n}", " | ".join(word.strip() + same_time for word in log_.split("|")))
        for n, log_ in enumerate((one, other))
    ]
    report = run_merge(of, tmp_path / "out")
    assert single_partition(report).refused, report.to_text()


def test_sound_batch_between_two_damaged_ones_is_found(tmp_path: Path) -> None:
    """The length before it is lost. The batch after it shows the offset that follows."""
    of = write(tmp_path / "broker-1", "a=1 | b=1 | c=1 | d=1")
    ends = borders(log(of, 0).read_bytes())
    flip_bit(log(of, 0), 3)
    edit(log(of, 0), ends[0] + 8, (0x7FFFFF00).to_bytes(4, "big"))
    report = run_merge([of, write(tmp_path / "broker-2", "a=1")], tmp_path / "out")
    assert "c=1" in text(tmp_path / "out"), report.to_text()
    assert single_partition(report).gaps == [(1, 2), (3, 4)]


def test_wrong_checkpoint_of_a_copy_changes_no_epoch_of_the_others(tmp_path: Path) -> None:
    """The checkpoint of a compacted copy contradicts none of its own batches, but those of the other copies."""
    one = write(tmp_path / "broker-1")
    whole = text(one)
    other = compacted(one, tmp_path / "broker-2")
    (one / FOLDER / "leader-epoch-checkpoint").unlink()
    (other / FOLDER / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 2\n")
    report = run_merge([one, other], tmp_path / "out")
    assert (text(tmp_path / "out"), single_partition(report).epochs_corrected) == (whole, 0), report.to_text()


def test_overlapping_segments_of_a_copy_are_read_once(tmp_path: Path) -> None:
    one = write(tmp_path / "broker-1")
    other = write(tmp_path / "broker-2")
    whole = text(one)
    log(one, 0).write_bytes(log(one, 0).read_bytes() + log(one, 1).read_bytes())
    flip_bit(log(one, 1), 0)
    flip_bit(log(other, 1), 0)
    report = run_merge([one, other], tmp_path / "out")
    assert text(tmp_path / "out").replace(" || ", " | ") == whole.replace(" || ", " | "), report.to_text()


def test_an_empty_active_segment_keeps_the_log_end(tmp_path: Path) -> None:
    one = write(tmp_path / "broker-1", f"{LOG} ||")
    other = write(tmp_path / "broker-2")
    run_merge([one, other], tmp_path / "one")
    check(tmp_path / "one")
    for path in files_in(one / FOLDER)[:-1]:
        path.unlink()
    offset_checkpoint(one / "log-start-offset-checkpoint", {"t 0": 11})
    shutil.rmtree(other / FOLDER)
    only_end = run_merge([one, other], tmp_path / "two")
    assert single_partition(only_end).next_offset == int(files_in(one / FOLDER)[-1].stem)


def test_beginning_of_the_log_is_read_from_the_copy_that_has_it(tmp_path: Path) -> None:
    of = copies(tmp_path, 2)
    whole = text(of[0])
    for path in (of[0] / FOLDER).glob(f"{0:020d}.*"):
        path.unlink()
    offset_checkpoint(of[0] / "log-start-offset-checkpoint", {"t 0": 5})
    report = run_merge(of, tmp_path / "out")
    assert text(tmp_path / "out") == whole
    assert single_partition(report).log_start_offset == 0
    assert "log-start-offset-checkpoint says 5" in report.to_text()
    assert not single_partition(report).gaps
    check(tmp_path / "out")


def test_files_of_an_interrupted_swap_are_resolved(tmp_path: Path) -> None:
    of = copies(tmp_path, 2)
    whole = text(of[0])
    shutil.copy(log(of[0], 0), f"{log(of[0], 0)}.deleted")
    shutil.copy(log(of[0], 1), f"{log(of[0], 1)}.cleaned")
    log(of[1], 1).rename(f"{log(of[1], 1)}.swap")
    run_merge(of, tmp_path / "out")
    assert text(tmp_path / "out") == whole
    check(tmp_path / "out")


def test_torn_tail_in_all_copies_ends_the_log(tmp_path: Path) -> None:
    of = copies(tmp_path, 2)
    for copy, n in zip(of, (3, 30), strict=True):
        log(copy, 2).write_bytes(log(copy, 2).read_bytes()[:-n])
    report = run_merge(of, tmp_path / "out")
    assert single_partition(report).next_offset == 8
    assert "torn_tail" in report.to_text()
    check(tmp_path / "out")


def test_value_that_contains_a_batch_is_not_read_as_a_batch(tmp_path: Path) -> None:
    """The length field is damaged, and the search finds the sound batch that the record holds."""
    write_partition(tmp_path / "inner" / FOLDER, "evil=1", base_offset=1)
    inner = log(tmp_path / "inner", 0).read_bytes()
    from lastkey.logformat.writing.segment_writer import SegmentWriter
    from tests.builders.logs import Row, arrow_records

    of = [tmp_path / "broker-1", tmp_path / "broker-2"]
    for copy in of:
        with SegmentWriter(copy / FOLDER, 0) as writer:
            for value in (b"x", inner, b"y"):
                writer.append_records(arrow_records([Row(b"k", value, None)], writer.next_offset))
        at = borders(log(copy, 0).read_bytes())[0]
        edit(log(copy, 0), at + 8, (0x7FFFFF00).to_bytes(4, "big"))
    report = run_merge(of, tmp_path / "out")
    assert single_partition(report).gaps == [(1, 2)]
    assert "evil" not in text(tmp_path / "out")


def test_unreadable_copy_does_not_stop_the_merge(tmp_path: Path) -> None:
    of = copies(tmp_path)
    whole = text(of[1])
    log(of[0], 1).unlink()
    log(of[0], 0).with_name(f"{5:020d}.log").mkdir()
    shutil.rmtree(of[2] / FOLDER)
    report = run_merge(of, tmp_path / "out")
    assert report.exit_code == 0, report.to_text()
    assert text(tmp_path / "out") == whole
    assert "broker-1: not read" in report.to_text()
    assert "broker-3: no such partition" in report.to_text()


def test_folder_given_twice_is_refused(tmp_path: Path) -> None:
    of = copies(tmp_path, 2)
    (tmp_path / "link").symlink_to(of[0])
    for other in (of[0], tmp_path / "link", of[0] / FOLDER):
        with pytest.raises(UsageError, match="same folder"):
            run_merge([of[0], other], tmp_path / "out")
    shutil.rmtree(of[1] / FOLDER)
    (of[1] / FOLDER).symlink_to(of[0] / FOLDER)
    with pytest.raises(UsageError, match="each copy counts once"):
        run_merge(of, tmp_path / "out")
    with pytest.raises(UsageError, match="two copies or more"):
        run_merge([of[0]], tmp_path / "out")


def test_output_inside_a_copy_or_not_empty_is_refused(tmp_path: Path) -> None:
    of = copies(tmp_path, 2)
    with pytest.raises(UsageError, match="needs a place outside"):
        run_merge(of, of[0] / "out")
    with pytest.raises(UsageError, match="needs a place outside"):
        run_merge(tmp_path, tmp_path / "out", layout="replicas")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").touch()
    with raises_kind(NOT_EMPTY):
        run_merge(of, tmp_path / "out")
    with pytest.raises(MissingPathError):
        run_merge([of[0], tmp_path / "none"], tmp_path / "other")


def test_result_does_not_depend_on_the_window_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = write(tmp_path / "broker-1")
    other = compacted(one, tmp_path / "broker-2")
    flip_bit(log(one, 0), 0)
    run_merge([one, other], tmp_path / "large")
    from lastkey.jobs.merge import job

    settings = job._settings
    monkeypatch.setattr(job, "_settings", lambda *of: replace(settings(*of), window_batches=1))
    run_merge([one, other], tmp_path / "small")
    assert read_tree(tmp_path / "small") == read_tree(tmp_path / "large")


def test_result_does_not_depend_on_the_ranges_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment with more ranges is begun while it is planned."""
    of = copies(tmp_path)
    for copy, batches in enumerate(([0, 2], [1], [])):
        for batch in batches:
            flip_bit(log(of[copy], 0), batch)
    run_merge(of, tmp_path / "many")
    monkeypatch.setattr(write_log, "_MOST_RANGES", 1)
    run_merge(of, tmp_path / "few")
    assert read_tree(tmp_path / "few") == read_tree(tmp_path / "many")


@pytest.mark.parametrize("ranges", [1, 1 << 14])
def test_failed_segment_refuses_the_partition_and_closes_all_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges: int
) -> None:
    """Segments that wait are not written, and those that are being written close their files alone."""
    of = copies(tmp_path, 2, LOG + LATER * 6)
    write_segment, written, ended = NewSegment.write, list[str](), Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait, cancel_futures=cancel_futures)
            if cancel_futures:
                ended.set()

    def fail_second(self: NewSegment) -> Segment:
        written.append(self.path)
        if len(written) == 2:
            self.close()
            raise LogFormatError("changed", self.path, 0, "more bytes", "end of file")
        if len(written) == 3:
            assert ended.wait(60)  # the fourth waits
        return write_segment(self)

    monkeypatch.setattr(merge_partition, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(write_log, "_MOST_RANGES", ranges)
    monkeypatch.setattr(merge_partition, "_WAITING", 2)
    monkeypatch.setattr(merge_partition, "_THREADS", 1)
    monkeypatch.setattr(NewSegment, "write", fail_second)
    report = run_merge(of, tmp_path / "out")
    assert single_partition(report).refused
    assert [problem.kind for problem in single_partition(report).problems] == ["changed"]
    assert len(written) == 3
    assert not (tmp_path / "out" / FOLDER).exists()
    assert open_files(tmp_path) == []


def test_segments_do_not_exceed_those_of_the_copies(tmp_path: Path) -> None:
    of = copies(tmp_path, 2)
    config = parse_config({"defaults": {"segment.bytes": 100}, "job": {"engine": "threads"}})
    most = max(path.stat().st_size for path in files_in(of[0] / FOLDER))
    log(of[0], 1).unlink()
    run_merge(of, tmp_path / "out", config)
    assert max(path.stat().st_size for path in files_in(tmp_path / "out" / FOLDER)) <= most
    check(tmp_path / "out")


def test_example_equals_the_output_of_its_script(tmp_path: Path) -> None:
    make_replicas.make(ROOT / "examples" / "archive", tmp_path)
    assert read_tree(tmp_path) == read_tree(ROOT / "examples" / "replicas")


def test_command_line_merges_copies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(ROOT / "examples" / "replicas")
    out = tmp_path / "out"
    code = cli.main(["merge", source, "--layout", "replicas", "--output", str(out), "--engine", "threads"])
    output = capsys.readouterr().out
    assert code == 0, output
    whole = read_tree(ROOT / "examples" / "archive" / "orders-0")
    files = read_tree(out / "orders-0")
    assert {name: data for name, data in files.items() if name.endswith(".log")} == {
        name: whole[name] for name in files if name.endswith(".log")
    }
    assert "broker-3" in output
    check(out)


_BROKER = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
input()
"""


@pytest.mark.process
def test_a_running_broker_is_refused(tmp_path: Path) -> None:
    of = copies(tmp_path, 2)
    command = [sys.executable, "-c", _BROKER, str(of[1] / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        assert broker.stdout.readline() == "held\n"
        with raises_kind(LOG_DIRECTORY_IN_USE):
            run_merge(of, tmp_path / "out")
        broker.communicate("\n")
