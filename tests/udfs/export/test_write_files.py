"""Files of an export, by the function of its tasks."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lastkey.jobs.data_source.files import find_partitions
from lastkey.jobs.data_source.options import Selection
from lastkey.jobs.data_source.plan_tasks import each
from lastkey.udfs.data_source.pieces import Range, Wanted, listed_logs
from lastkey.udfs.export import write_files
from lastkey.udfs.export.write_files import Exported, ExportSpec, ExportTask, export_file
from tests.builders.logs import write_partition

RUN = "0123456789abcdef"


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    write_partition(tmp_path / "archive" / "t-0", "a=1 b=- | {codec=gzip} -=3 || c=4")
    return tmp_path / "archive"


def export(archive: Path, out: Path, kind: str = "parquet", number: int = 0, run: str = RUN) -> Exported:
    out.mkdir(exist_ok=True)
    (out / "mark").write_text(f'"run": "{RUN}"')
    partitions = find_partitions((str(archive),), Selection())
    pieces = each(partitions, [Range(wanted=Wanted(committed=True), quarantine=True)] * len(partitions))
    spec = ExportSpec(str(out), "mark", run, kind, {"key": "string", "value": None}, committed=True)
    return export_file(
        spec, [listed_logs(partition) for partition in partitions], ExportTask("t", number, tuple(pieces), 1 << 20)
    )


def test_written_file_has_the_rows_and_its_result_counts_them(archive: Path, tmp_path: Path) -> None:
    done = export(archive, tmp_path / "out")
    assert (done.path, done.records, done.tombstones) == ("t/part-00000.zstd.parquet", 4, 1)
    assert done.bounds["offset"] == (0, 3)
    file = tmp_path / "out" / done.path
    assert file.stat().st_size == done.size
    assert pq.read_table(file)["key"].to_pylist() == ["a", "b", None, "c"]


def test_repeated_attempt_replaces_its_file_except_in_a_delta_table(archive: Path, tmp_path: Path) -> None:
    for kind, n_files in (("parquet", 1), ("ndjson", 1), ("delta", 2)):
        for _ in range(2):
            export(archive, tmp_path / kind, kind)
        assert len([*(tmp_path / kind / "t").iterdir()]) == n_files


@pytest.mark.parametrize("kind", ["parquet", "ndjson", "delta"])
def test_task_of_a_replaced_export_writes_nothing(archive: Path, tmp_path: Path, kind: str) -> None:
    done = export(archive, tmp_path / "out", kind, run="another")
    assert done.path == ""
    assert [*(tmp_path / "out" / "t").iterdir()] == []


def test_empty_topic_gets_one_file_without_rows(tmp_path: Path) -> None:
    (tmp_path / "archive" / "t-0").mkdir(parents=True)
    (tmp_path / "archive" / "t-0" / f"{0:020}.log").touch()
    assert export(tmp_path / "archive", tmp_path / "out", number=1).path == ""
    done = export(tmp_path / "archive", tmp_path / "out")
    assert pq.read_schema(tmp_path / "out" / done.path).names[:2] == ["partition", "offset"]


@pytest.mark.parametrize("kind", ["parquet", "ndjson"])
def test_a_full_disk_leaves_no_file(archive: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(write_files, "flush", full)
    with pytest.raises(OSError, match="No space left"):
        export(archive, tmp_path / "out", kind)
    assert [*(tmp_path / "out" / "t").iterdir()] == []
