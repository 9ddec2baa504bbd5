"""The table time_index: what happened at a time, against decoded records; a refresh reads only what is new."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from chispa import assert_df_equality

from lastkey.jobs.command import cli
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.read_options import LookupOptions
from lastkey.jobs.errors import MissingPathError, UsageError
from lastkey.jobs.lookup import tables as time_index
from lastkey.jobs.lookup.partitions import archived_partitions
from lastkey.jobs.lookup.tables import happened, refresh, run_at
from lastkey.jobs.store.minutes import minute_table
from lastkey.jobs.store.tables import open_state
from lastkey.jobs.topics import EVERY_TOPIC, TopicFilter
from lastkey.logformat.batches.segment import open_segment
from lastkey.udfs.lookup.minutes import MINUTE_MS
from tests.builders.archives import put
from tests.builders.logs import write_partition
from tests.builders.trees import files_in
from tests.golden import golden

pytestmark = pytest.mark.spark


@pytest.fixture
def archive(tmp_path, tmp_path_factory):
    cases = golden(tmp_path_factory)
    root = tmp_path / "archive"
    for name in ("ts-disorder", "none-append"):
        put(cases[name].input(f"{name}-0"), root / f"{name}-0", segments=2)
    return root


def expected(root, start, end):
    """Return (topic, partition) -> first minute, first offset, minutes: the slow way."""
    out = {}
    for folder in sorted(root.iterdir()):
        topic, _, partition = folder.name.rpartition("-")
        rows = [
            row
            for log in files_in(folder)
            for row in open_segment(log).to_arrow(["offset", "timestamp_ms", "control"]).to_pylist()
            if not row["control"] and start <= row["timestamp_ms"] < end
        ]
        if rows:
            minutes = {row["timestamp_ms"] // MINUTE_MS for row in rows}
            first = min(row["offset"] for row in rows)
            out[topic, int(partition)] = (min(minutes) * MINUTE_MS, first, len(minutes))
    return out


@pytest.mark.slow
def test_time_index_table_is_built_queried_and_updated(spark, archive, tmp_path, tmp_path_factory):
    state = open_state(str(tmp_path / "store"))
    times = [
        t
        for log in files_in(archive, "**/*.log")
        for t in open_segment(log).to_arrow(["timestamp_ms"]).column(0).to_pylist()
        if t >= 0
    ]
    start = min(times) // MINUTE_MS * MINUTE_MS

    def check():
        for first, last in (
            (start, start + 5 * MINUTE_MS),
            (start, max(times) // MINUTE_MS * MINUTE_MS + MINUTE_MS),
            (0, start),
        ):
            rows, problems = happened(minute_table(spark, state.root), first, last)
            assert not problems
            minutes = {
                (r["topic"], r["partition"]): (r["first_minute_ms"], r["first_offset"], r["minutes"]) for r in rows
            }
            assert minutes == expected(archive, first, last)

    def refresh_table():
        return refresh(spark, state, archived_partitions(str(archive), EVERY_TOPIC, []))

    report = refresh_table()
    size = sum(log.stat().st_size for log in files_in(archive, "**/*.log"))
    assert report == {"segments_read": 4, "bytes_read": size, "segments_kept": 0, "segments_removed": 0}
    check()
    version = minute_table(spark, state.root).count()
    assert refresh_table() == {"segments_read": 0, "bytes_read": 0, "segments_kept": 4, "segments_removed": 0}
    assert minute_table(spark, state.root).count() == version

    put(golden(tmp_path_factory)["none-append"].input("none-append-0"), archive / "none-append-0", segments=3)  # grows
    new = files_in(archive / "none-append-0")[2]
    report = refresh_table()
    assert (report["segments_read"], report["bytes_read"], report["segments_kept"]) == (1, new.stat().st_size, 4)
    check()

    log = files_in(archive / "ts-disorder-0")[1]
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])  # another file under an old name, and new ones beside
    write_partition(archive / "other-7", "a=1~60000 b=2~120000")
    shutil.rmtree(archive / "none-append-0")
    report = refresh_table()
    assert (report["segments_read"], report["segments_kept"], report["segments_removed"]) == (2, 1, 3)
    topics = minute_table(spark, state.root).select("topic").distinct()
    assert_df_equality(
        topics, spark.createDataFrame([("other",), ("ts-disorder",)], "topic string"), ignore_row_order=True
    )
    check()


@pytest.mark.slow
def test_lookup_at_a_time_refreshes_the_table_and_reports_its_rows(spark, archive, tmp_path, capsys, monkeypatch):
    store = str(tmp_path / "store")
    options = LookupOptions(str(archive), store=store, at="1970-01-01T00:00Z..2100-01-01T00:00Z")
    report = run_at(options, Silent())
    assert report.exit_code == 0
    assert [row["topic"] for row in report.rows] == ["none-append", "ts-disorder"]
    assert "time_index: read 4 segments" in report.to_text()
    assert report.to_json()["refreshed"]["segments_read"] == 4

    write_partition(archive / "disk" / "bad-0", "a=1~60000 | b=2~120000")
    log = archive / "disk" / "bad-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    write_partition(archive / "disk" / "ts-disorder-0", "a=1")  # a second one of this name: which is it?
    report = run_at(options, Silent())
    assert report.exit_code == 3
    assert [word in problem for problem, word in zip(report.problems, ("duplicate", "crc"), strict=True)] == [True] * 2
    assert [row["topic"] for row in report.rows] == ["bad", "none-append", "ts-disorder"]  # up to there; its rows stay
    assert report.refreshed["segments_removed"] == 0
    assert "problem: " in report.to_text()

    with monkeypatch.context() as changed:
        changed.setattr(time_index, "_MOST_PROBLEMS", 0)
        report = run_at(replace(options, archive=None, refresh=False), Silent())
    assert (report.exit_code, report.problems) == (3, ["and 1 partition more whose rows end early"])

    report = run_at(replace(options, archive=None, refresh=False, topics=TopicFilter(("none*",))), Silent())
    assert (report.exit_code, [row["topic"] for row in report.rows]) == (0, ["none-append"])
    table = replace(options, archive=None, refresh=False)
    with pytest.raises(UsageError, match=r"no topic of .*time_index matches nome-append; did you mean none-append"):
        # nothing happened to a topic that there is not
        run_at(replace(table, topics=TopicFilter(("nome-append",))), Silent())
    with pytest.raises(UsageError, match=r"no such partition in .*time_index: none-append-7; did you mean"):
        run_at(replace(table, partitions=("none-append-0", "none-append-7")), Silent())
    assert cli.main(["lookup", "--store", store, "--at", "5"]) == 2
    assert "give ARCHIVE" in capsys.readouterr().err
    with pytest.raises(MissingPathError, match="made by a refresh"):
        run_at(LookupOptions(store=str(tmp_path / "none"), at="5", refresh=False), Silent())


@pytest.mark.slow
def test_live_log_is_indexed_up_to_the_high_watermark(spark, tmp_path):
    """An uncommitted record may disappear, and `lookup --time` does not return it either."""
    root, at = tmp_path / "archive", MINUTE_MS * 100
    write_partition(root / "t-0", f"a=1~{at} | b=2~{at + MINUTE_MS} | c=3~{at + 2 * MINUTE_MS}")
    (root / "replication-offset-checkpoint").write_text("0\n1\nt 0 2\n")
    (root / ".lock").touch()
    holds = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print(flush=True); input()"
    options = LookupOptions(str(root), store=str(tmp_path / "store"), at=f"{at}..{at + 3 * MINUTE_MS}")
    with subprocess.Popen(
        [sys.executable, "-c", holds, str(root / ".lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as broker:
        broker.stdout.readline()
        held = run_at(options, Silent())
        broker.communicate(b"\n")
    later = run_at(options, Silent())
    assert [row["minutes"] for row in (*held.rows, *later.rows)] == [2, 3]
    assert later.refreshed["segments_read"] == 0  # the files are as they were


@pytest.mark.slow
def test_many_tasks_write_the_same_rows_as_one(spark, archive, monkeypatch):
    segments = [s for plan in archived_partitions(str(archive), EVERY_TOPIC, []) for s in time_index._segments(plan)]
    here = time_index._frame(spark, segments)
    monkeypatch.setattr(time_index, "_TASK_BYTES", 1)
    existing = time_index._frame(spark, segments)
    assert here.count()
    assert_df_equality(existing, here, ignore_row_order=True)
