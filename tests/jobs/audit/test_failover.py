"""`audit failover` on small archives, written by hand. With real consumers: tests/kafka/test_mirrors.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lastkey.jobs.audit.failover_job import FailoverReport, read_offsets, run
from lastkey.jobs.audit.mirror_job import run as run_mirror
from lastkey.jobs.command.kinds import audit_side
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import AuditFailoverOptions, AuditMirrorOptions
from lastkey.jobs.errors import MissingPathError, UsageError
from tests.builders.damage import flip
from tests.builders.groups import checkpoint, commit, commit_key, write_log
from tests.builders.logs import Row, write_partition
from tests.builders.trees import files_in

pytestmark = [pytest.mark.spark, pytest.mark.slow]

#       0   1   2     3   4   5     6   7
LOG = "a=1 b=1 a=2 | c=1 -=9 b=2 || d=1 a=3"
MS = 1_700_000_000_000


def audit(a: Path, b: Path, audits: Path, **given: object) -> FailoverReport:
    sides = {"a": audit_side(str(a)), "b": audit_side(str(b))}
    given = {"group": "g", "audits": str(audits), **given}
    return run(AuditFailoverOptions(**sides, **given), Silent())


def answers(report: FailoverReport) -> dict[str, tuple[int | None, str, int]]:
    """Return offset, way and how much is read again, by partition of A."""
    return {f"{row.topic}-{row.partition}": (row.offset, row.way, row.again) for row in report.partitions}


def write_a(root: Path, topics: dict[str, str], committed: dict[str, int], *more: Row) -> Path:
    for name, text in topics.items():
        write_partition(root / name, text)
    rows = [commit("g", *partition.rsplit("-", 1)[:1], int(partition[-1]), n) for partition, n in committed.items()]
    write_log(root / "__consumer_offsets-0", [[*rows, *more]])
    return root


@pytest.mark.parametrize("engine", ["spark", "threads"])
def test_each_translation_method_reports_its_lost_records(spark, tmp_path, engine):
    """Topics: an exact copy; one with changed values; one that the mirror does not have; and one with damage."""
    a = write_a(
        tmp_path / "a",
        {"exact-0": LOG, "changed-0": LOG, "none-0": LOG, "holes-0": LOG, "damaged-0": LOG, "unread-0": LOG},
        {"exact-0": 5, "changed-0": 5, "none-0": 5, "holes-0": 3, "damaged-0": 5},
        Row(commit_key("g", "unread", 0), b"\0\3"),
    )
    b = tmp_path / "b"
    write_partition(b / "exact-0", LOG.replace("||", "|"))
    later = " ".join(f"{word}x~{MS + i + 1}" for i, word in enumerate(LOG.replace("|", "").split()))
    write_partition(b / "changed-0", later)
    write_partition(b / "holes-0", f"a=1 b=1 a=2 | b=2~{MS + 5} a=3~{MS + 7}")
    write_partition(b / "damaged-0", LOG)
    flip(files_in(b / "damaged-0")[0], 61 + 10)
    report = audit(a, b, tmp_path / "audits", engine=engine)
    translated = answers(report)
    assert translated["exact-0"] == (5, "identity", 0)
    assert translated["changed-0"] == (4, "time", 1)  # a ms later than in A: the last delivered one again
    assert translated["none-0"] == (None, "identity", 0)
    assert translated["holes-0"] == (3, "identity", 0)
    assert translated["damaged-0"][0] == 0  # the content of its first batch is unknown
    assert "unread-0" not in translated  # its committed offset cannot be read
    assert any("committed last of unread-0 cannot be read" in str(problem) for problem in report.problems)
    lost = {(row["topic"], row["offset"]): row["key"] for row in report.lost}
    assert {offset: key for (topic, offset), key in lost.items() if topic == "holes"} == {3: "c", 4: "(none)", 6: "d"}
    assert {offset for topic, offset in lost if topic == "none"} == {5, 6, 7}
    assert report.exit_code == 3
    assert json.loads(json.dumps(report.to_json()))["summary"]["ways"] == {"identity": 4, "time": 1, "start": 0}
    sides = {"a": audit_side(str(a)), "b": audit_side(str(b))}
    mirror = run_mirror(AuditMirrorOptions(**sides, audits=str(tmp_path / "audits")), Silent())
    rows = DeltaTable(str(tmp_path / "audits/state/audit_pairs")).to_pyarrow_table().to_pylist()
    of_group = [row for row in rows if row["group"] == "g"]  # the other audit of the same pair leaves them
    assert {(r["topic"], r["offset"], r["way"]) for r in of_group if r["kind"] == "partition"} == {
        (one.topic, one.offset, one.way) for one in report.partitions
    }
    assert {(r["topic"], r["offset"]) for r in of_group if r["kind"] == "lost"} == set(lost)
    of_mirror = [row for row in rows if row["group"] is None]
    assert sum(row["keys"] for row in of_mirror) == sum(row["keys"] for row in mirror.partitions)


def test_checkpoints_of_mirrormaker_confirm_or_contradict_the_result(spark, tmp_path):
    """The last one of the group counts; damage is a problem; without the topic there is no opinion."""
    names = ("early", "late", "equal", "none")
    a = write_a(tmp_path / "a", {f"{name}-0": LOG for name in names}, {f"{name}-0": 5 for name in names})
    b = tmp_path / "b"
    for name in names:
        write_partition(b / f"{name}-0", LOG)
    assert audit(a, b, tmp_path / "audits").mirror_maker == []
    rows = [
        checkpoint("g", "early", 2, 2), checkpoint("g", "late", 5, 7), checkpoint("g", "equal", 3, 3),
        checkpoint("gg", "none", 5, 5), checkpoint("g", "equal", 5, 5), Row(b"\0\1g", b"\0"), Row(b"\0", None),
    ]  # fmt: skip
    write_log(b / "A.checkpoints.internal-0", [rows])
    report = audit(a, b, tmp_path / "audits")
    translated = {row.topic: (row.answer, row.offset, row.skipped) for row in report.mirror_maker}
    assert translated == {"early": ("confirms", 2, 0), "late": ("skips", 7, 2), "equal": ("confirms", 5, 0)}
    assert any("late-0: MirrorMaker 2 continues at 7, and skips 2 offsets of B" in note for note in report.notes)
    assert [str(p) for p in report.problems if "expected a checkpoint of MirrorMaker 2" in str(p)]
    assert "Checkpoints of MirrorMaker 2" in report.to_text()


def test_committed_offsets_of_groups_are_translated(spark, tmp_path):
    write_partition(tmp_path / "b" / "t-0", LOG)
    write_partition(tmp_path / "a" / "t-0", LOG)
    with pytest.raises(MissingPathError, match="__consumer_offsets"):
        audit(tmp_path / "a", tmp_path / "b", tmp_path / "audits")
    write_a(tmp_path / "offsets", {}, {"t-0": 6})
    report = audit(tmp_path / "a", tmp_path / "b", tmp_path / "audits", offsets_archive=str(tmp_path / "offsets"))
    assert answers(report) == {"t-0": (6, "identity", 0)}
    assert report.exit_code == 0
    with pytest.raises(UsageError, match="--group h: it committed no offset of A's topics; groups that did: g"):
        audit(tmp_path / "a", tmp_path / "b", tmp_path / "audits", offsets_archive=str(tmp_path / "offsets"), group="h")
    flip(files_in(tmp_path / "offsets" / "__consumer_offsets-0")[0], 61 + 10)
    report = audit(tmp_path / "a", tmp_path / "b", tmp_path / "audits", offsets_archive=str(tmp_path / "offsets"))
    assert report.exit_code == 3  # its commits are unknown: all of B
    assert answers(report) == {"t-0": (0, "identity", 0)}


def test_offsets_are_read_from_a_file_and_a_plan_is_written(spark, tmp_path):
    write_partition(tmp_path / "a" / "t-0", LOG)
    write_partition(tmp_path / "b" / "A.t-0", "a=1 b=1 a=2 c=1")
    (tmp_path / "committed.csv").write_text("h,t,0,1\ng,t,0,3\ng,u,0,9\n")
    options = {"committed": str(tmp_path / "committed.csv"), "renames": (r"A\.(.*)=\1",)}
    report = audit(tmp_path / "a", tmp_path / "b", tmp_path / "audits", output=str(tmp_path / "plan.csv"), **options)
    assert answers(report) == {"t-0": (3, "identity", 0)}
    assert (tmp_path / "plan.csv").read_text() == "A.t,0,3\n"
    assert read_offsets(str(tmp_path / "plan.csv"), "any") == {("A.t", 0): 3}
    with pytest.raises(UsageError, match="no offset of group i"):
        audit(tmp_path / "a", tmp_path / "b", tmp_path / "audits", group="i", **options)
    with pytest.raises(UsageError, match="--output"):
        audit(tmp_path / "a", tmp_path / "b", tmp_path / "audits", output=str(tmp_path / "a" / "plan.csv"), **options)


@pytest.mark.parametrize(
    "text", ["t,0", "t,0,-1", "t,x,1", ",0,1", "a,b,c,d,e", "t,0,1\nt,0,2", "TOPIC,PARTITION,OFFSET"]
)
def test_files_without_offsets_are_refused(tmp_path, text):
    (tmp_path / "offsets.csv").write_text(text)
    with pytest.raises(UsageError, match=r"offsets\.csv: line \d"):
        read_offsets(str(tmp_path / "offsets.csv"), "g")
    with pytest.raises(MissingPathError):
        read_offsets(str(tmp_path / "none.csv"), "g")
