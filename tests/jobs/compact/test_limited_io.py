"""max.bytes.per.second: the counted bytes equal those of the kernel, and a run takes the corresponding time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import lastkey
from lastkey.logformat.storage import io_counts
from tests.bench.make_log import make_partition

pytestmark = pytest.mark.slow  # whole runs

LIMIT = 40_000_000


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("limited")
    for number in range(2):
        make_partition(folder / f"t-{number}", "none", records=80_000, keys=20_000, value_bytes=200, seed=number)
    return folder


def _compact(archive: Path, store: Path, **options: Any) -> Any:
    return lastkey.compact(archive, store, topics="t", cleanup_policy="compact", **options)


def _counted() -> int:
    """Return the bytes that this process has read and written, as the kernel counts them."""
    rows = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(rows["rchar"]) + int(rows["wchar"])


def test_counted_bytes_equal_those_of_the_kernel(archive, tmp_path):
    _compact(archive, tmp_path / "first", engine="threads")  # imports
    before = _counted()
    with _sum() as spent:
        report = _compact(archive, tmp_path / "store", engine="threads", overrides={"max.bytes.per.second": LIMIT})
    counted = _counted() - before
    assert [r.status for r in report.results] == ["cleaned", "cleaned"]
    assert counted > 80_000_000
    assert counted * 0.97 < spent[0] <= counted


@pytest.mark.parametrize("engine", ["threads", pytest.param("spark", marks=pytest.mark.spark)])
def test_duration_of_a_limited_run_matches_its_bytes(request, archive, tmp_path, engine):
    if engine == "spark":
        request.getfixturevalue("spark")
    with _sum() as spent:
        _compact(archive, tmp_path / "counted", engine="threads", overrides={"max.bytes.per.second": LIMIT})
    report = _compact(archive, tmp_path / "store", engine=engine, overrides={"max.bytes.per.second": LIMIT})
    assert report.seconds["partitions"] > 0.9 * spent[0] / LIMIT
    free = _compact(archive, tmp_path / "free", engine=engine)
    assert [(r.work.bytes_after, r.work.counters) for r in report.results] == [
        (r.work.bytes_after, r.work.counters) for r in free.results
    ]


def test_restore_does_not_exceed_the_io_limit(archive, tmp_path):
    """A reflink moves no bytes: only its checksum is read. The end of each log is read again, for the report."""
    _compact(archive, tmp_path / "store", engine="threads")
    with _sum() as spent:
        counted = lastkey.restore(tmp_path / "store", tmp_path / "counted", overrides={"max.bytes.per.second": LIMIT})
    size = sum(p.bytes for p in counted.partitions)
    assert size <= spent[0] <= 2 * size + 4096 * len(counted.partitions)
    report = lastkey.restore(tmp_path / "store", tmp_path / "restored", overrides={"max.bytes.per.second": LIMIT // 4})
    assert report.seconds["total"] > 0.9 * spent[0] / (LIMIT // 4)


@pytest.mark.spark
def test_audit_does_not_exceed_the_io_limit(spark, archive, tmp_path):
    """By the setting, as other jobs in tasks; on Spark each of the tasks has its part."""
    config = {"job": {"max.bytes.per.second": LIMIT // 8}}
    report = lastkey.audit("keys", archive, audits=tmp_path / "audits", config=config)
    assert report.bytes_read > 30_000_000
    assert report.seconds["read"] > 0.9 * report.bytes_read / (LIMIT // 8)


@contextmanager
def _sum() -> Iterator[list[int]]:
    """Yield what is spent in the block, without waiting."""
    spent = [0]

    def spend(self: io_counts.Limit, n: int) -> None:
        spent[0] += n

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io_counts.Limit, "spend", spend)
        yield spent
