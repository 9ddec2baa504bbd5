"""Later audits keep what has not changed: report and table are those of a first audit of the same logs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lastkey.jobs.audit import delivery, failover_job, keys, mirror_job
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.command.kinds import audit_side
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import (
    AuditDeliveryOptions,
    AuditFailoverOptions,
    AuditKeysOptions,
    AuditMirrorOptions,
)
from lastkey.jobs.store.tables import open_state
from tests.builders.groups import commit, write_log
from tests.builders.logs import write_partition

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Run = Callable[[Path, Path], AuditReport]


def run_keys(root: Path, audits: Path) -> AuditReport:
    return keys.run(AuditKeysOptions(str(root / "a"), audits=str(audits)), Silent())


def run_delivery(root: Path, audits: Path) -> AuditReport:
    return delivery.run(AuditDeliveryOptions(str(root / "a"), audits=str(audits)), Silent())


def run_mirror(root: Path, audits: Path) -> AuditReport:
    sides = {side: audit_side(str(root / side)) for side in "ab"}
    return mirror_job.run(AuditMirrorOptions(**sides, audits=str(audits)), Silent())


def run_failover(root: Path, audits: Path) -> AuditReport:
    sides = {side: audit_side(str(root / side)) for side in "ab"}
    return failover_job.run(AuditFailoverOptions(**sides, group="g", audits=str(audits)), Silent())


KINDS = {
    "keys": (run_keys, "audit_keys"), "delivery": (run_delivery, "audit_deliveries"),
    "mirror": (run_mirror, "audit_pairs"), "failover": (run_failover, "audit_pairs"),
}  # fmt: skip
FIRST = {
    "a/t-0": "a=1 b=1 a=2 | =1 c=- || d=1", "b/t-0": "a=1 b=1 | c=- || d=1", "a/t-1": "e=1 f=1 | e=2",
    "b/t-1": "e=1 f=1",
    "a/u-0": "x=1 y=1", "b/u-0": "x=1 y=2",
}  # fmt: skip
# What is written next, and the partitions whose results are computed again; of keys those of their topics
NIGHTS: tuple[tuple[dict[str, str], set[str]], ...] = (
    ({}, set()),
    ({"a/t-1": "e=1 f=1 | e=2 | g=1 a=7", "b/t-1": "e=1 f=1 | e=2"}, {"t-1"}),
    ({"a/t-2": "a=9 h=1 || i=1"}, {"t-2"}),
    ({"a/u-0": "x=5"}, {"u-0"}),  # the topic was created again
    ({"a/t-1": "e=1 f=1 | e=2 | g=1 a=7 || k=1"}, {"t-1"}),
)


def table_rows(audits: Path, table: str) -> list[str]:
    files = open_state(str(audits)).head(table).files()
    rows = pa.concat_tables([pq.read_table(audits / "state" / table / path) for path in files]).to_pylist()
    lawful = {"a_versions", "b_versions", "missing_versions", "extra_versions", "keys"}
    added: dict[str, dict[str, int]] = {}
    for row in rows:  # rows of what is lawful add up
        counts = {name: row.pop(name) or 0 for name in lawful & row.keys()}
        sums = added.setdefault(repr(sorted(row.items())), dict.fromkeys(counts, 0))
        sums |= {name: sums[name] + n for name, n in counts.items()}
    return sorted(f"{row} {sorted(counts.items())}" for row, counts in added.items())


@pytest.mark.parametrize("kind", KINDS)
def test_results_of_later_audits_equal_a_new_audit(spark: Any, tmp_path: Path, kind: str) -> None:
    run, table = KINDS[kind]
    write_log(tmp_path / "a" / "__consumer_offsets-0", [[commit("g", "t", 0, 3), commit("g", "t", 1, 1)]])
    texts = dict(FIRST)
    for name, text in FIRST.items():
        write_partition(tmp_path / name, text)
    audits = tmp_path / "audits"
    first = run(tmp_path, audits)
    n_before = first.partitions_answered
    assert first.partitions_kept == 0 < n_before
    for number, (changes, changed) in enumerate(NIGHTS):
        for name, text in changes.items():
            shutil.rmtree(tmp_path / name, ignore_errors=True)
            write_partition(tmp_path / name, text)
        texts |= changes
        later, fresh = run(tmp_path, audits), run(tmp_path, tmp_path / f"fresh{number}")
        assert facts(later) == facts(fresh), number
        assert table_rows(audits, table) == table_rows(tmp_path / f"fresh{number}", table)
        answered = len(changed)
        if kind == "keys":
            topics = {name[0] for name in changed}
            answered = sum(name[0] == "a" and name[2] in topics for name in texts)
        if kind == "failover":
            answered = sum(name[0] == "t" for name in changed)
        assert later.partitions_answered == answered, number
        assert later.partitions_kept == fresh.partitions_answered - answered
        assert (later.bytes_read == 0) == (not changes)


def facts(report: AuditReport) -> dict[str, Any]:
    """Return what an audit found, without what depends on earlier audits."""
    depend = {"audits", "trend", "stretches_read", "bytes_read", "partitions_answered", "partitions_kept", "seconds"}
    return {name: value for name, value in report.to_json().items() if name not in {*depend, "engine"}}


def test_missing_result_is_computed_again(spark: Any, tmp_path: Path) -> None:
    for name, text in FIRST.items():
        write_partition(tmp_path / name, text)
    audits = tmp_path / "audits"
    first = run_mirror(tmp_path, audits)
    for damage in (Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-50]), corrupt):
        path = next(iter(open_state(str(audits)).head("audit_pairs").files()))  # the folder has older ones too
        damage(audits / "state" / "audit_pairs" / path)
        again = run_mirror(tmp_path, audits)
        assert (again.summary, again.partitions_kept, again.bytes_read) == (first.summary, 0, 0)


def corrupt(path: Path) -> None:
    """Change the last byte of a column, which is data; no checksum covers the headers of pages."""
    column, data = pq.read_metadata(path).row_group(0).column(0), bytearray(path.read_bytes())
    data[(column.dictionary_page_offset or column.data_page_offset) + column.total_compressed_size - 1] ^= 1
    path.write_bytes(data)
