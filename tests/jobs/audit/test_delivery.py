"""`audit delivery` by hand, and against plain code on drawn logs. With real groups of a broker: tests/kafka."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from lastkey.jobs.audit.coordinators import committed_positions
from lastkey.jobs.audit.delivery import DeliveryReport, run
from lastkey.jobs.command.kinds import AuditSource
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.reporting import duration
from lastkey.jobs.command.store_options import AuditDeliveryOptions
from lastkey.jobs.errors import MissingPathError, UnknownNameError, UsageError
from lastkey.jobs.store.history import job_rows
from lastkey.jobs.store.tables import open_state
from lastkey.udfs.audit.committed import CommitsRead, OffsetCommit, gather, partition_for
from tests.builders.archives import Lab
from tests.builders.damage import edit
from tests.builders.groups import commit, commit_key, end, in_transaction, share_record, share_topics, write_log
from tests.builders.logs import START_MS, Row, write_partition

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ID = bytes(range(16))
#      offsets   0   1   2   3     4   5   6
ORDERS = "a=1 b=1 a=2 c=1 | a=- b=2 d=1"


def audit(archive: Path, audits: Path, **given: Any) -> DeliveryReport:
    source = given.pop("source", AuditSource(archive=str(archive)))
    return run(AuditDeliveryOptions(**vars(source), audits=str(audits), **given), Silent())


def read_table(audits: Path) -> list[dict[str, Any]]:
    """Return the rows of the table, by the data files that delta-rs names."""
    folder = audits / "state" / "audit_deliveries"
    files = open_state(str(audits)).head("audit_deliveries").files()
    rows = [row for path in files for row in pq.read_table(folder / path).to_pylist()]
    return sorted(rows, key=lambda row: (row["group"], row["topic"], row["partition"], row["key"]))


def brief(rows: list[dict[str, Any]], group: str) -> dict[str, tuple[Any, ...]]:
    names = ("delivered_offset", "last_offset", "lag_versions", "lag_offsets", "lag_ms", "age_ms", "verdict")
    return {row["key"].decode(): tuple(row[name] for name in names) for row in rows if row["group"] == group}


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    root = tmp_path / "archive"
    write_partition(root / "orders-0", ORDERS)
    write_partition(root / "orders-1", "e=1")
    write_partition(root / "unread-0", "f=1")
    return root


@pytest.mark.parametrize("engine", ["spark", "threads"])
def test_small_log_has_the_expected_deliveries(spark, archive, tmp_path, engine):
    """A record's timestamp is START_MS + its offset."""
    groups = [commit("done", "orders", 0, 7), commit("done", "orders", 1, 1), commit("late", "orders", 0, 2)]
    share = share_topics("share", "orders", ID, [0])
    write_log(archive / "__consumer_offsets-0", [[*groups, share]])
    state = share_record("share", ID, 0, 1, [(3, 3, 2, 1), (4, 4, 0, 2), (6, 6, 4, 5)])
    write_log(archive / "__share_group_state-0", [[state]])
    report = audit(archive, tmp_path / "audits", max_age_ms=3, engine=engine)
    assert (report.exit_code, report.findings, report.problems) == (3, 3, []), report.to_text()
    rows = read_table(tmp_path / "audits")
    assert brief(rows, "done") == {
        "a": (4, 4, 0, 0, 0, 0, "delivered"), "b": (5, 5, 0, 0, 0, 0, "delivered"),
        "c": (3, 3, 0, 0, 0, 0, "delivered"), "d": (6, 6, 0, 0, 0, 0, "delivered"),
        "e": (0, 0, 0, 0, 0, 0, "delivered"),
    }  # fmt: skip
    assert brief(rows, "late") == {  # 0 and 1 are delivered; of e nothing is committed
        "a": (0, 4, 2, 4, 4, 4, "undelivered"), "b": (1, 5, 1, 4, 4, 1, "undelivered"),
        "c": (None, 3, 1, 1, 0, 3, "undelivered"), "d": (None, 6, 1, 1, 0, 0, "undelivered"),
        "e": (None, 0, 1, 1, 0, 0, "undelivered"),
    }  # fmt: skip
    assert brief(rows, "share") == {  # 0, 3 and 6 are delivered: 2 and 4 of a, and 1 and 5 of b, are not
        "a": (0, 4, 2, 4, 4, 4, "undelivered"), "b": (None, 5, 2, 5, 4, 5, "undelivered"),
        "c": (3, 3, 0, 0, 0, 0, "delivered"), "d": (6, 6, 0, 0, 0, 0, "delivered"),
        "e": (None, 0, 1, 1, 0, 0, "undelivered"),
    }  # fmt: skip
    late = next(row for row in report.summary["groups"] if row["group"] == "late")
    assert (late["keys"], late["undelivered"], late["never"], late["undelivered_tombstones"]) == (5, 5, 3, 1)
    assert late["versions_behind"] == 6
    assert late["lag_versions"] == {"p50": 1, "p90": 2, "p99": 2, "max": 2}
    assert late["age_ms"] == {"p50": 1, "p90": 4, "p99": 4, "max": 4}
    worst = [(row["key"], row["age_ms"]) for row in report.worst if row["group"] == "late"]
    assert worst == [("a", 4), ("c", 3), ("b", 1), ("d", 0), ("e", 0)]
    assert json.loads(json.dumps(report.to_json()))["summary"]["undelivered"] == 8

    write_partition(tmp_path / "more" / "orders-1", "e=1 | e=2")
    log = archive / "orders-1" / "00000000000000000000.log"
    log.write_bytes((tmp_path / "more" / "orders-1" / log.name).read_bytes())
    again = audit(archive, tmp_path / "audits", groups=("done",), max_age_ms=0)
    assert again.exit_code == 0 and again.bytes_read > 0  # age 0: it is the newest record
    assert brief(read_table(tmp_path / "audits"), "done")["e"] == (0, 1, 1, 1, 1, 0, "undelivered")
    (before,) = again.trend
    assert [(row["group"], row["undelivered"]) for row in before.groups] == [("done", 0)]
    assert "Trend" in again.to_text()
    first, second = job_rows(open_state(str(tmp_path / "audits")))
    assert (first.job, first.outcome, second.outcome) == ("audit delivery", "problems", "done")
    assert (before.audit_id, before.at_ms) == (first.run_id, first.started_ms)
    assert second.amounts["sources"] == again.sources and second.amounts["summary"]["groups"] == again.summary["groups"]


def test_generation_and_committed_offsets_of_a_generation_are_read(spark, tmp_path):
    """Compaction of both leaves the keys' last updates and the groups' last commits, and so the verdicts."""
    topics = {name: {"cleanup.policy": "compact"} for name in ("orders", "__consumer_offsets")}
    lab = Lab(None, tmp_path, {"topics": topics, "job": {"engine": "threads"}})
    write_partition(lab.archive / "orders-0", "a=1 b=1 a=2 || c=1 b=2 || d=1 a=3")
    first = [commit("g", "orders", 0, 1), in_transaction(1, commit("g", "orders", 0, 2)), end(1, commit=False)]
    second = [in_transaction(1, commit("g", "orders", 0, 4)), end(1, commit=True), commit("evil\n\x1b", "orders", 0, 9)]
    write_log(lab.archive / "__consumer_offsets-0", [first, second, [commit("other", "x", 0, 1)]])
    assert lab.run(START_MS).exit_code == 0
    audits = tmp_path / "audits"
    ends = []
    for source in (AuditSource(archive=str(lab.archive)), AuditSource(store=str(lab.store))):
        report = audit(lab.archive, audits, source=source)
        assert report.exit_code == 0, report.to_text()
        assert r"'evil\n\x1b'" in report.to_text()
        rows = [row for row in read_table(audits) if row["source"] == report.sources[0] and row["group"] == "g"]
        ends.append({row["key"]: (row["last_offset"], row["verdict"]) for row in rows})
    assert ends[0] == {b"a": (6, "undelivered"), b"b": (4, "undelivered"), b"c": (3, "delivered"),
                       b"d": (5, "undelivered")}  # fmt: skip
    assert ends[1] == ends[0]
    versions = {
        row["source"]: row["versions"] for row in read_table(audits) if (row["group"], row["key"]) == ("g", b"a")
    }
    assert sorted(versions.values()) == [2, 3]


def test_groups_of_a_damaged_coordinator_are_unknown(spark, archive, tmp_path):
    audits = tmp_path / "audits"
    hidden = next(name for name in "ghijk" if partition_for(name, 2) == 0)
    other = next(name for name in "ghijk" if partition_for(name, 2) == 1)
    write_log(archive / "__consumer_offsets-0", [[commit(hidden, "orders", 0, 7), commit(hidden, "orders", 1, 1)]])
    write_log(archive / "__consumer_offsets-1", [[commit(other, "orders", 0, 7)]])
    log = archive / "__consumer_offsets-0" / "00000000000000000000.log"
    edit(log, log.stat().st_size - 3, b"\xff\xff")
    report = audit(archive, audits)
    assert report.exit_code == 3 and [problem.kind for problem in report.problems] == ["crc"]
    rows = read_table(audits)
    assert {row["verdict"] for row in rows if row["group"] == hidden} == {"unknown"}
    assert {row["verdict"] for row in rows if row["group"] == other} == {"delivered", "undelivered"}
    group = next(f"new{i}" for i in range(9) if partition_for(f"new{i}", 2) == 0)
    unknown = audit(archive, audits, groups=(group,))
    assert unknown.exit_code == 3 and list(unknown.unknown_groups) == [group]
    with pytest.raises(UnknownNameError, match="it has committed nothing; did you mean"):
        never = next(f"{other}{i}" for i in range(99) if partition_for(f"{other}{i}", 2) == 1)
        audit(archive, audits, groups=(never,))


def test_key_whose_last_update_may_be_damaged_is_unknown(spark, archive, tmp_path):
    write_log(archive / "__consumer_offsets-0", [[commit("g", "orders", 0, 7), commit("h", "orders", 0, 1)]])
    log = archive / "orders-0" / "00000000000000000000.log"
    edit(log, log.stat().st_size - 3, b"\xff\xff")
    report = audit(archive, tmp_path / "audits")
    assert report.exit_code == 3
    rows = read_table(tmp_path / "audits")
    verdicts = {(row["group"], row["key"]): row["verdict"] for row in rows if row["partition"] == 0}
    assert verdicts == {
        ("g", b"a"): "unknown", ("g", b"b"): "unknown", ("g", b"c"): "unknown",
        ("h", b"a"): "undelivered", ("h", b"b"): "undelivered", ("h", b"c"): "undelivered",
    }  # fmt: skip


def test_remote_old_and_missing_committed_offsets_are_reported(spark, archive, tmp_path):
    with pytest.raises(MissingPathError, match="__consumer_offsets"):
        audit(archive, tmp_path / "audits")
    with pytest.raises(UsageError, match="--deliveries contradicts --offsets-archive"):
        audit(archive, tmp_path / "audits", deliveries="told.csv", offsets_archive=str(archive))
    other = tmp_path / "offsets"
    unreadable = Row(commit_key("g", "orders", 1), b"\0\3")
    commits = [commit("g", "orders", 0, 99), commit("g", "elsewhere", 0, 5), unreadable]
    write_log(other / "__consumer_offsets-0", [commits])
    report = audit(archive, tmp_path / "audits", offsets_archive=str(other))
    assert [note for note in report.notes if "99" in note] == [
        "group 'g' is at offset 99 of orders-0, and what was read of it ends at 7: the log is older than the offsets,"
        " or the topic was created again"
    ]
    assert {row["topic"] for row in report.summary["groups"]} == {"orders"}
    assert report.summary["unknown"] == 1 and report.exit_code == 3
    assert report.problems == [
        "group 'g': the offset that it committed last of orders-1 cannot be read (record 2 of __consumer_offsets-0)"
    ]


def test_skipped_groups_and_topics_are_named():
    """A share group's topic whose name no record says, and a group that reads nothing of what is audited."""
    commits = (
        OffsetCommit("s", None, "id", 0, 5, record_offset=1),
        OffsetCommit("g", "elsewhere", None, 0, 5, record_offset=1),
        OffsetCommit("h", "orders", None, 0, 5, record_offset=2),
    )
    commits_read = gather(
        [CommitsRead("__share_group_state", 0, commits[:1]), CommitsRead("__consumer_offsets", 0, commits[1:])]
    )
    positions = committed_positions(commits_read, ("g", "h", "s"), {"orders": 2}, {("orders", 0): 9})
    assert positions.notes == [
        "group 'g' has committed no offset of a topic that is audited",
        "group 's': no record has the names of the topics id; their offsets are skipped",
        "group 's' has committed no offset of a topic that is audited",
    ]
    rows = [(one.group, unit, one.start, one.known) for unit, of in positions.by_unit.items() for one in of]
    assert rows == [("h", ("orders", 0), 5, True), ("h", ("orders", 1), 0, True)] and positions.unknown == {}


def test_share_group_with_the_largest_offset_is_read():
    most = 2**63 - 1
    commits = (OffsetCommit("s", "orders", "id", 0, 5, delivered=((7, most),), record_offset=1),)
    commits_read = gather([CommitsRead("__share_group_state", 0, commits), CommitsRead("__consumer_offsets", 0)])
    ((position,),) = committed_positions(commits_read, (), {"orders": 1}, {}).by_unit.values()
    assert (position.tail, position.ranges) == (most, ((7, most),))


TOLD = {"topic": ["orders", "orders", "orders"], "key": ["a", "b", "gone"], "offset": [2, 5, 1]}


@pytest.mark.parametrize("kind", ["parquet", "csv", "delta"])
def test_deliveries_are_read_from_a_table(spark, archive, tmp_path, kind):
    table, options = pa.table(TOLD), {}
    path = tmp_path / f"told.{kind}"
    if kind == "parquet":
        keys = pa.array([key.encode() for key in TOLD["key"]], pa.binary())
        pq.write_table(table.set_column(1, "key", keys).append_column("partition", pa.array([0, 0, 0])), path)
    elif kind == "csv":
        options = {"key_format": "base64"}
        table = table.set_column(1, "key", pa.array([base64.b64encode(key.encode()).decode() for key in TOLD["key"]]))
        pa.csv.write_csv(table.append_column("group", pa.array(["x", "x", "x"])), path)
    else:
        options = {"hide_keys": True}
        write_deltalake(str(path), table)
    report = audit(archive, tmp_path / "audits", deliveries=str(path), **options)
    assert report.exit_code == 0, report.to_text()
    rows = read_table(tmp_path / "audits")
    verdicts = {row["last_offset"]: (row["delivered_offset"], row["lag_versions"], row["verdict"]) for row in rows}
    expected = {4: (2, 1, "undelivered"), 5: (5, 0, "delivered"), 3: (None, 1, "undelivered"),
                6: (None, 1, "undelivered"), 0: (None, 1, "undelivered")}  # fmt: skip
    assert verdicts == expected
    assert {row["group"] for row in rows} == {"x" if kind == "csv" else "(table)"}
    assert [note for note in report.notes if "no record" in note] == [
        f"1 row of {path}: no record with this key is left"
    ]


def test_topics_missing_in_a_table_are_noted(spark, archive, tmp_path):
    """An export that failed may leave an empty table: nothing is late then, as nothing is judged."""
    pq.write_table(pa.table(TOLD).slice(0, 0), tmp_path / "told.parquet")
    report = audit(archive, tmp_path / "audits", deliveries=str(tmp_path / "told.parquet"))
    assert report.summary["keys"] == 0
    assert any("names no key of" in note and "orders" in note for note in report.notes)
    with pytest.raises(UsageError, match="needs Spark for its tables"):
        audit(archive, tmp_path / "audits", deliveries=str(tmp_path / "told.parquet"), engine="threads")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"topic": ["t"], "key": ["a"]}, "expected the columns topic, key and offset; found topic, key"),
        ({"topic": ["t"], "key": ["xyz"], "offset": [1]}, "1 rows without a readable key; keys are read as hex"),
        ({"topic": ["t"], "key": ["00"], "offset": ["1x"]}, "1 rows without a readable offset"),
    ],
)
def test_tables_without_deliveries_are_refused(spark, archive, tmp_path, columns, message):
    pq.write_table(pa.table(columns), tmp_path / "told.parquet")
    with pytest.raises(UsageError, match=message):
        audit(archive, tmp_path / "audits", deliveries=str(tmp_path / "told.parquet"), key_format="hex")


def test_durations_have_a_unit():
    assert [duration(ms) for ms in (None, 0, 999, 1500, 90_000, 5_400_000, 129_600_000)] == [
        "-", "0 ms", "999 ms", "1.5 s", "1.5 min", "1.5 h", "1.5 d",
    ]  # fmt: skip
