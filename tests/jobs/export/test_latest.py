"""`export --latest`, step by step, against the last record of each key of a plain reader."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.read_options import ExportOptions
from lastkey.jobs.errors import NOT_EMPTY, ConflictError, UsageError
from lastkey.jobs.export import job, latest
from lastkey.jobs.export.output import ExportReport
from lastkey.logformat.names import segment_file
from tests.builders.archives import borders, offset_checkpoint
from tests.builders.damage import flip
from tests.builders.errors import raises_kind
from tests.builders.latest_tables import OTHER_ID, Log, Place, each_drawn, grow
from tests.builders.steps import at_step, interrupt, listening
from tests.reference.log import ABORT, COMMIT

pytestmark = pytest.mark.spark


@pytest.mark.slow
def test_random_runs_keep_the_table_equal_to_the_log(spark, tmp_path, request):
    """Appends, tombstones, committed, aborted and open transactions, retention, repaired damage, kills and a recreated
    topic.
    """
    each_drawn(request, tmp_path, partial(drawn, spark), nights=12)


def drawn(spark, root: Path, rng: random.Random, nights: int) -> None:
    place = Place(root, 2)
    place.identify()
    is_open: list[set[int]] = [set(), set()]
    for night in range(nights):
        is_recreated = night > 0 and rng.random() < 0.15
        if is_recreated:  # the topic is deleted and made again
            shutil.rmtree(place.archive)
            place.logs = [Log(log.folder) for log in place.logs]
            place.identify(UUID(int=rng.getrandbits(128)))
            is_open = [set(), set()]
        for log, pids in zip(place.logs, is_open, strict=True):
            log.roll()
            grow(log, pids, rng)
        if not is_recreated and rng.random() < 0.4:
            with damaged(rng.choice(place.logs), rng):
                run_any(place)
                if stood := place.stand():
                    place.check(spark, ends=[stood.get(i, 0) for i in range(2)])
        if rng.random() < 0.3:
            killed(place, rng)
        place.run()
        place.check(spark)
        first = place.logs[0]
        if rng.random() < 0.5 and len(first.bases) > 1 and first.bases[1] <= place.stand().get(0, 0):  # retention
            (first.folder / segment_file(first.bases.pop(0), "log")).unlink()


@contextmanager
def damaged(log: Log, rng: random.Random) -> Iterator[None]:
    """Flip a bit that a checksum covers, in one of the segments."""
    path = log.folder / segment_file(rng.choice(log.bases), "log")
    whole = path.read_bytes()
    if whole:
        batch = rng.choice(borders(whole))
        flip(path, batch - 1 - rng.randrange(10), rng.randrange(8))
    yield
    path.write_bytes(whole)


def run_any(place: Place) -> ExportReport:
    """Run, whatever the exit code: an unread batch may be the damaged one."""
    options = ExportOptions(str(place.archive), output=str(place.output), format="delta", latest=True)
    return job.run(options, Silent())


def killed(place: Place, rng: random.Random) -> None:
    """Run, and end before or within the commit, if there is anything to commit."""
    step = rng.choice(["last rows written", "merge", "replace_all"])
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(latest, step, lambda *_: interrupt(), raising=False)
        with listening(lambda reached: interrupt() if reached == step else None):
            place.run()


@pytest.mark.slow
def test_damage_stops_a_partition_until_it_is_repaired(spark, tmp_path):
    place = Place(tmp_path, 2)
    good, bad = place.logs
    bad.append("a=1 b=1")
    bad.append("t=1", pid=7)  # its transaction ends behind the damage
    bad.roll()
    bad.append("a=2")
    bad.finish(7, COMMIT)
    good.append("x=1")
    whole = bad.log.read_bytes()
    flip(bad.log, 70)
    report = place.run(3)
    assert [Path(p.path).parent.name for p in report.problems] == ["t-1"]
    place.check(spark, ends=[1, 2])
    good.append("x=2 y=-")
    bad.log.write_bytes(b"\xff" * 20 + whole[20:])  # a header
    place.run(3)
    place.check(spark, ends=[3, 2])
    bad.log.write_bytes(whole)
    place.run()
    place.check(spark)


@pytest.mark.slow
def test_damage_in_the_segment_of_the_log_start_stops_a_partition(spark, tmp_path):
    place = Place(tmp_path)
    (log,) = place.logs
    log.append("a=1 a=2")
    first = log.log.stat().st_size
    log.append("c=1")
    offset_checkpoint(place.archive / "log-start-offset-checkpoint", {"t-0": 1})
    flip(log.log, first + 65)
    place.run(3)
    assert place.stand() == {}
    flip(log.log, first + 65)
    place.run()
    place.check(spark)


@pytest.mark.slow
def test_killed_run_changes_both_rows_and_offsets_or_neither(spark, tmp_path, monkeypatch):
    place = Place(tmp_path)
    (log,) = place.logs
    log.append("a=1 b=1 c=1")
    place.run()
    log.append("a=- b=2 d=1")
    with at_step("last rows written", interrupt), pytest.raises(KeyboardInterrupt):
        place.run()
    place.check(spark, ends=[3])
    with monkeypatch.context() as patch:  # the commit exists, and its response was lost
        done = latest.merge
        patch.setattr(latest, "merge", lambda *given: (done(*given), interrupt()))
        with pytest.raises(KeyboardInterrupt):
            place.run()
    place.check(spark)
    assert (place.run().topics[0].records, place.stand()) == (0, {0: 6})


@pytest.mark.slow
def test_control_records_and_unknown_keys_only_move_the_offsets(spark, tmp_path):
    place = Place(tmp_path)
    place.identify(UUID(int=1))
    (log,) = place.logs
    log.append("a=-")
    place.run()
    log.append("b=1", pid=1)
    log.finish(1, ABORT)
    log.append("z=-")
    place.run()
    place.check(spark)
    shutil.rmtree(log.folder)  # the same in a topic that is made again
    place.logs = [Log(log.folder)]
    place.identify()
    place.logs[0].append("a=- b=-")
    place.identify(OTHER_ID)
    place.run()
    place.check(spark)


@pytest.mark.slow
def test_recreated_topic_is_exported_again_and_shorter_log_is_refused(spark, tmp_path):
    place = Place(tmp_path)
    place.identify()
    place.logs[0].append("a=1 b=1 c=1")
    place.run()
    kept = place.logs[0]
    shutil.rmtree(kept.folder)
    place.logs = [Log(kept.folder)]
    place.logs[0].append("a=9")
    place.identify()
    report = place.run(3)
    assert "an older copy, or another log" in str(report.problems[0])
    place.logs, now = [kept], place.logs
    place.check(spark, ends=[3])
    place.logs = now
    place.identify(OTHER_ID)
    report = place.run()
    assert report.notes == ["t: the topic was deleted and made again, so its table starts over"]
    place.check(spark)


@pytest.mark.slow
def test_records_expired_before_they_were_read_are_reported(spark, tmp_path):
    place = Place(tmp_path, 2)
    log, other = place.logs
    log.append("a=1 b=1")
    other.append("o=1")
    place.run()
    log.append("a=2")
    log.roll()
    log.append("b=3")
    (log.folder / segment_file(0, "log")).unlink()
    report = place.run(3)
    assert "expected offset 2, the table's position, found a log that begins at 3" in str(report.problems[0])
    place.check(spark, ends=[2, 1])
    shutil.rmtree(other.folder)  # a disk is missing
    report = place.run(3, overrides={"gaps": "accept"})
    assert [Path(p.path).name for p in report.problems] == ["t-1"]
    del log.batches[1]  # it has not been read
    place.check(spark, ends=[4, 1])


@pytest.mark.slow
def test_table_changed_by_another_program_is_not_written(spark, tmp_path):
    place = Place(tmp_path)
    place.logs[0].append("a=1")
    place.run()
    place.logs[0].append("a=2")
    uri = place.output / "t"
    spark.sql(f"OPTIMIZE delta.`{uri}`")
    place.run()
    place.check(spark)
    spark.sql(f"DELETE FROM delta.`{uri}`")
    report = place.run(3)
    assert "found DELETE in version" in str(report.problems[0])
    with raises_kind(NOT_EMPTY, match="another export"):
        place.run(value_decoder="long")


@pytest.mark.slow
def test_concurrent_run_is_a_conflict(spark, tmp_path):
    place = Place(tmp_path)
    place.logs[0].append("a=1")
    place.run()
    place.logs[0].append("a=2")
    uri = place.output / "t"
    with (
        at_step("last rows written", lambda: spark.sql(f"DELETE FROM delta.`{uri}`")),
        pytest.raises(ConflictError, match="no other run on this table"),
    ):
        place.run()


def test_latest_refuses_incompatible_options(tmp_path):
    with pytest.raises(UsageError, match="needs --format delta"):
        job.run(ExportOptions("a", output="b", format="parquet", latest=True), Silent())
    with pytest.raises(UsageError, match="gives different keys different values"):
        job.run(ExportOptions("a", output="b", format="delta", latest=True, key_decoder="uuid"), Silent())
