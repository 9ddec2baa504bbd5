"""A cleaned log that needs more than one segment, before a real broker: it starts without recovery, builds the same
indexes, and serves the same records in both isolation levels, also where an aborted transaction spans the border.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lastkey.logformat.names import segment_file
from tests.builders.limits import limit_logs
from tests.builders.place import NOW, Place
from tests.builders.trees import files_in
from tests.kafka_lab import check_served, dump, index_check, start_restored
from tests.kafka_lab.loading import partition_dirs
from tests.kafka_lab.oracle import visible_lines
from tests.reference.cleaner import Segment
from tests.reference.log import ABORT, COMMIT, Batch, Record, data_batch, marker_batch

pytestmark = pytest.mark.kafka

START_MS = NOW - 100_000
LIMIT = 6000


def messages(first: int, stop: int, value: bytes = b"") -> tuple[Batch, ...]:
    """Return messages of magic 0 with unique keys: each takes twice as many bytes as a batch of magic 2."""
    made = [Record(offset, -1, b"key %d" % offset, value) for offset in range(first, stop)]
    return tuple(Batch(r.offset, r.offset, (r,), magic=0, max_timestamp=-1).encoded() for r in made)


def transaction(offset: int, producer_id: int, rows: int, first_ms: int = START_MS) -> Batch:
    made = [(first_ms + i, b"in %d at %d" % (producer_id, offset + i), b"v") for i in range(rows)]
    return data_batch(
        offset, made, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
    )  # fmt: skip


# Magic 0 as before the upgrade of a cluster; then transactions: 7 is aborted, and spans 40 messages; 8 is committed
OLD = (*messages(0, 60), transaction(60, 7, 5), transaction(65, 8, 5), *messages(70, 110))
ENDS = (marker_batch(110, 7, ABORT, timestamp=START_MS), marker_batch(111, 8, COMMIT, timestamp=START_MS))
EXPIRES = data_batch(112, [(START_MS - 3_600_000, b"old", b"v")])
LOG = (Segment(0, (*OLD, *ENDS, EXPIRES, *messages(113, 150)), NOW), Segment(150, messages(150, 160), NOW))
LATER = (
    Segment(
        160, (*messages(160, 170), data_batch(170, [(START_MS, b"key 3", b"2"), (START_MS, b"key 80", b"2")])), NOW
    ),
    Segment(172, (data_batch(172, [(START_MS, b"active", b"v")]),), NOW),
)


def write(folder: Path, segments: tuple[Segment, ...]) -> None:
    for segment in segments:
        path = folder / segment_file(segment.base_offset, "log")
        path.write_bytes(b"".join(batch.data for batch in segment.batches))
        os.utime(path, ns=(segment.mtime_ms * 10**6,) * 2)


class Runs:
    """A store whose logs have a limit, and one without, of archives that are the same."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.limited, self.whole = Place(root / "limited", capsys), Place(root / "whole", capsys)
        self._monkeypatch = monkeypatch

    def compact(self, segments: tuple[Segment, ...], *options: str) -> None:
        """Write segments, compact both, and verify both."""
        for place, limit in ((self.whole, 2**31 - 1), (self.limited, LIMIT)):
            write(place.archive, segments)
            limit_logs(self._monkeypatch, limit)
            store = ("--store", str(place.store), "--topics", "t", "--now", str(NOW), "--force", "--sealed")
            code, output = place.run("compact", str(place.archive.parent), *store, *options)
            assert code == 0, output
            code, result = place.run("verify", "--store", str(place.store))
            assert code == 0, result
        assert self.limited.generation().replace("||", "|") == self.whole.generation().replace("||", "|")

    def restored(self, name: str) -> list[Path]:
        """Restore both; return the log directories, that of the limited one first."""
        out = [place.root / name for place in (self.limited, self.whole)]
        for place, folder in zip((self.limited, self.whole), out, strict=True):
            code, output = place.run("restore", "--store", str(place.store), "--output", str(folder))
            assert code == 0, output
        return out


@pytest.fixture
def runs(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(tmp_path, capsys, monkeypatch)


def check_under_broker(limited: Path, whole: Path) -> None:
    """Check what a broker that starts on the first log directory serves, against the records of the other one."""
    lines = [dump([folder / "t-0"], "R")[folder / "t-0"] for folder in (limited, whole)]
    for isolation in ("read_committed", "read_uncommitted"):
        assert visible_lines(lines[0], isolation) == visible_lines(lines[1], isolation)  # type: ignore[arg-type]
    report = index_check([limited / "t-0"], rebuild=True)[limited / "t-0"]
    assert (report.failures, report.rebuild_differs) == ([], [])
    with start_restored(limited) as broker:
        problems, hidden = check_served(broker.bootstrap, partition_dirs([broker.data]), strict_times=True)
        assert (problems, hidden) == ([], {"t-0": 0})


def bases(folder: Path) -> list[int]:
    return [int(path.stem) for path in files_in(folder / "t-0")]


def transaction_indexes(folder: Path) -> dict[int, int]:
    return {int(path.stem): path.stat().st_size for path in files_in(folder / "t-0", "*.txnindex")}


@pytest.mark.slow
def test_broker_appends_to_a_compacted_log_and_the_next_run_continues(runs: Runs) -> None:
    policy = ("--cleanup-policy", "compact")
    runs.compact(LOG, *policy)
    limited, whole = runs.restored("first")
    assert [base > 65 for base in bases(limited)] == [False, True] and bases(whole) == [0]
    assert max(path.stat().st_size for path in files_in(limited / "t-0")) <= LIMIT
    assert transaction_indexes(limited) == {bases(limited)[1]: 34}
    check_under_broker(limited, whole)
    runs.compact(LATER, *policy)
    check_under_broker(*runs.restored("second"))


@pytest.mark.slow
def test_a_broker_hides_aborted_records_whose_marker_is_in_the_next_segment(runs: Runs) -> None:
    """Retention inside of segments keeps aborted records. The entry of the index is in the segment of the marker."""
    settings = runs.limited.root / "exact.toml"
    settings.write_text('[defaults]\n"cleanup.policy" = "delete"\n"retention.ms" = 1800000\n"retention.exact" = true\n')
    runs.compact(LOG, "--config", str(settings))
    limited, whole = runs.restored("exact")
    [border] = [base for base in bases(limited) if 60 < base <= 110]
    assert transaction_indexes(limited) == {border: 34}
    records = dump([limited / "t-0"], "R")[limited / "t-0"]
    shown = [len(visible_lines(records, isolation)) for isolation in ("read_uncommitted", "read_committed")]
    assert shown[0] - shown[1] == 5
    check_under_broker(limited, whole)
