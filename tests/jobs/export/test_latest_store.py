"""`export --latest` of a store, whose compactions drop what a table needs, against the last record of each key."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.read_options import ExportOptions
from lastkey.jobs.export import job
from lastkey.jobs.export.output import ExportReport
from lastkey.jobs.topics import TopicFilter
from tests.builders.archives import COMPACT, Lab, offset_checkpoint
from tests.builders.damage import START_MS, flip
from tests.builders.latest_tables import OTHER_ID, Log, Place, each_drawn, grow
from tests.builders.trees import make_older

pytestmark = pytest.mark.spark
DAY_MS = 86_400_000
DAYS = {**COMPACT, "delete.retention.ms": DAY_MS, "cleanup.policy": "compact,delete"}


class StorePlace(Place):
    """An archive of a topic `t`, its store, and the tables of the store's export."""

    def __init__(self, root: Path, n: int = 1) -> None:
        super().__init__(root, n)
        self.lab, self.night = Lab(None, root, {"topics": {"t": DAYS}, "job": {"engine": "threads"}}), 0
        self.begins = [0] * n  # offsets from which the table knows the log
        self.identify()

    def compact(self, **given) -> None:
        self.night += 1
        self.lab.run(START_MS + self.night * DAY_MS, **given)
        make_older(self.lab.root, 24)

    def run(self, code: int | None = 0, **given) -> ExportReport:
        options = ExportOptions(
            None, output=str(self.output), format="delta", store=str(self.lab.store), latest=True, **given
        )
        report = job.run(options, Silent())
        assert code in (None, report.exit_code), report.to_text()
        return report

    def verify(self, spark) -> None:
        """Check the table at its own offsets."""
        stands = self.stand()
        rows = {(i, key, *row) for i, log in enumerate(self.logs) for key, row in log.rows(stands.get(i, 0)).items()}
        assert set(self.rows(spark)) == {row for row in rows if row[2] >= self.begins[row[0]]}

    def is_at_the_end(self) -> None:
        """Check that the table has read all that the generations hold."""
        rows = self.lab.state().checkpoints()
        assert self.stand() == {n: row.next_offset for (_, n), row in rows.items() if row.next_offset}


def close(log: Log, words: str) -> None:
    """Append a batch, and begin a segment behind it."""
    log.append(words)
    log.roll()


def grow_and_compact(place: StorePlace, words: str) -> None:
    """Let three days pass, after which a tombstone that was there is gone."""
    for _ in range(3):
        close(place.logs[0], words)
        place.compact(force=True)


@pytest.mark.slow
def test_tombstones_removed_by_a_compaction_delete_rows(spark, tmp_path, monkeypatch):
    place = StorePlace(tmp_path)
    (log,) = place.logs
    close(log, "a=1 b=1 c=1")
    place.compact()
    place.run()
    close(log, "a=- b=2")
    grow_and_compact(place, "x=1")
    held = {r.key for b in place.lab.batches(place.lab.state().current()[1]["t", 0]) for r in b.records}
    assert b"a" not in held  # neither the record nor its tombstone
    real, stood = job.check_output, log.end

    def overtaken(*given):
        close(log, "c=-")
        grow_and_compact(place, "x=2")
        return real(*given)

    monkeypatch.setattr(job, "check_output", overtaken)  # behind the listing
    report = place.run()
    assert (report.topics[0].deleted, report.topics[0].updated, place.stand()) == (1, 1, {0: stood})
    place.verify(spark)
    monkeypatch.undo()
    assert place.run().topics[0].deleted == 1
    place.verify(spark)
    place.is_at_the_end()


@pytest.mark.slow
def test_generations_are_exported_by_number_in_order(spark, tmp_path):
    place = StorePlace(tmp_path)
    (log,) = place.logs
    for words in ("a=1 b=1", "a=- c=1", "c=2", "b=-", "d=1"):
        close(log, words)
        place.compact(force=True)
    for number in (1, 3, 5):
        place.run(generation=number)
        place.verify(spark)
    report = place.run(3, generation=2)
    assert "an older copy, or another log" in str(report.problems[0])
    place.verify(spark)


@pytest.mark.slow
def test_note_names_keys_that_may_have_expired_or_been_deleted(spark, tmp_path):
    place = StorePlace(tmp_path)
    (log,) = place.logs
    close(log, "a=1 b=1")
    close(log, "c=1")
    place.compact()
    place.run()
    close(log, "a=-")
    grow_and_compact(place, "x=1")
    offset_checkpoint(place.archive / "log-start-offset-checkpoint", {"t-0": 2})
    close(log, "y=1")
    place.compact(force=True)
    report = place.run(3)
    assert "found neither for 2 rows, the first of offset 0: expired" in str(report.problems[0])
    assert place.stand() == {0: 3}
    place.verify(spark)
    place.run(overrides={"gaps": "accept"})
    place.is_at_the_end()
    assert {key for _, key, *_ in place.rows(spark)} == {b"a", b"b", b"c", b"x", b"y"}


@pytest.mark.slow
def test_reset_store_is_exported_again_and_damaged_store_is_reported(spark, tmp_path):
    place = StorePlace(tmp_path)
    close(place.logs[0], "a=1 b=1")
    place.compact()
    place.run()
    shutil.rmtree(place.archive)
    place.logs = [Log(place.archive / "t-0")]
    place.identify(OTHER_ID)
    close(place.logs[0], "c=1 k=1")
    place.compact(reset=TopicFilter(("t",)))
    report = place.run()
    assert report.notes == ["t: the store began it again (--reset), so its table starts over"]
    place.verify(spark)
    place.is_at_the_end()
    close(place.logs[0], "c=-")
    grow_and_compact(place, "d=1")
    segments = place.lab.state().current()[1]["t", 0]
    damaged = place.lab.path(
        next(segment for segment in segments if segment.size_bytes > 65)
    )  # k, below the table's position
    flip(damaged, 65)
    assert {p.kind for p in place.run(3).problems} == {"crc"}
    flip(damaged, 65)
    place.run()
    place.verify(spark)
    place.is_at_the_end()


@pytest.mark.slow
def test_random_runs_keep_the_table_equal_to_the_store(spark, tmp_path, request):
    """Appends, tombstones, transactions, retention, resets; one to three compactions a run."""
    each_drawn(request, tmp_path, partial(drawn, spark), nights=10)


def drawn(spark, root: Path, rng: random.Random, nights: int) -> None:
    place = StorePlace(root, 2)
    is_open: list[set[int]] = [set(), set()]
    for log in place.logs:
        close(log, "k0=0")
    for night in range(nights):
        reset = None
        if night and rng.random() < 0.1:
            shutil.rmtree(place.archive)
            place.logs = [Log(log.folder) for log in place.logs]
            place.identify(UUID(int=rng.getrandbits(128)))
            is_open, reset, place.begins = [set(), set()], TopicFilter(("t",)), [0, 0]
        for _ in range(rng.randrange(1, 4)):
            for log, pids in zip(place.logs, is_open, strict=True):
                grow(log, pids, rng)
                log.roll()
            place.compact(force=rng.random() < 0.5, reset=reset)
            reset = None
        if place.run(None).exit_code:  # retention removed it first, or it is unknown why a key is gone
            place.verify(spark)
            shutil.rmtree(place.output / "t")
            place.run()
            place.begins = [read_log_start(place, n) for n in range(2)]
        place.verify(spark)
        if rng.random() < 0.4:
            starts = {f"t-{n}": rng.choice([0, *log.bases]) for n, log in enumerate(place.logs)}
            starts = {name: max(start, read_log_start(place, int(name[2:]))) for name, start in starts.items()}
            offset_checkpoint(place.archive / "log-start-offset-checkpoint", starts)


def read_log_start(place: StorePlace, number: int) -> int:
    return place.lab.state().checkpoints()["t", number].log_start_offset
