"""Stores that keep magic 3: `restore` gives the files that a store in magic 2 gives, and verify finds nothing wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs.command.config import parse_config
from lastkey.jobs.command.options import CompactOptions, ConvertOptions, VerifyOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RestoreOptions
from lastkey.jobs.compact import job as compact
from lastkey.jobs.convert import job as convert
from lastkey.jobs.errors import OTHER_FORMAT
from lastkey.jobs.restore import job as restore
from lastkey.jobs.restore.choose_generations import choose
from lastkey.jobs.restore.report import RestoreReport
from lastkey.jobs.store.generations import open_store
from lastkey.jobs.store.tables import State
from lastkey.jobs.topics import EVERY_TOPIC
from lastkey.jobs.verify import job as verify
from lastkey.logformat.listing import Segment
from lastkey.udfs.convert_log import holds_magic_3
from lastkey.udfs.storage import Root
from tests.builders.archives import put
from tests.builders.errors import raises_kind
from tests.builders.formats import as_v3
from tests.builders.trees import files_in, read_tree
from tests.golden import Case
from tests.reference import log
from tests.reference.log import decode_log

NAMES = ("none-tomb", "lz4-append", "txn-zstd", "gzip-headers")
DAY_MS = 25 * 3_600_000


CONFIG = parse_config(
    {
        "defaults": {"cleanup.policy": "compact", "null.keys": "drop", "segment.bytes": 30_000},
        "job": {"engine": "threads"},
    }
)


def stored(archive: Path, work: Path, now_ms: int) -> RestoreReport:
    """Compact an archive twice, and restore."""
    store = work / "store"
    for number in range(2):
        options = CompactOptions(str(archive), str(store), now_ms=now_ms + number * DAY_MS, config=CONFIG, force=True)
        report = compact.run(options, Silent())
        assert report.exit_code == 0, report.to_text()
        checked = verify.run(VerifyOptions(store=str(store), config=CONFIG), Silent())
        assert checked.exit_code == 0, checked.to_text()
    restored = restore.run(RestoreOptions(str(store), str(work / "out")), Silent())
    assert restored.exit_code == 0
    return restored


def contents(folder: Path) -> dict[str, object]:
    """Return the files of a log directory; of logs that a codec writes in another way here, the batches."""
    out: dict[str, object] = {}
    for path, data in read_tree(folder).items():
        if "txn-zstd" in path and path.endswith(".log"):
            out[path] = decode_log(data)
        elif not ("txn-zstd" in path and path.endswith("index") and not path.endswith("txnindex")):
            out[path] = data
    return out


def list_magics(data: bytes) -> str:
    """Return the magics in a log, by the fields that stand at the same place in every one."""
    magics, at = set(), 0
    while at < len(data):
        magics.add(data[at + 16])
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return ",".join(map(str, sorted(magics)))


@pytest.fixture
def archive(cases: dict[str, Case], tmp_path: Path) -> Path:
    for name in NAMES:
        for partition in cases[name].partitions:
            put(cases[name].input(partition), tmp_path / "archive" / partition)
    return tmp_path / "archive"


@pytest.mark.slow
def test_restore_of_magic_3_equals_that_of_magic_2(archive: Path, cases: dict[str, Case], tmp_path: Path) -> None:
    """Two runs for an archive in each format; the last segment remains in the archive."""
    now_ms = max(cases[name].now_ms(1, p) for name in NAMES for p in cases[name].partitions)
    plain = stored(archive, tmp_path / "v2", now_ms)
    assert not any(p.converted for p in plain.partitions)
    expected = contents(tmp_path / "v2" / "out")
    report = stored(as_v3(archive, tmp_path / "archive-v3"), tmp_path / "v3", now_ms)
    assert contents(tmp_path / "v3" / "out") == expected
    assert all(p.converted for p in report.partitions)
    assert "came from magic 3" in report.to_text()


def test_manifest_names_segments_to_convert_to_magic_2(
    archive: Path, cases: dict[str, Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest names the segments of magic 3, so batches of other segments are not read. An older manifest lacks
    this, and the headers are read.
    """
    now_ms = max(cases[name].now_ms(1, p) for name in NAMES for p in cases[name].partitions)
    newer = as_v3(archive, tmp_path / "newer")
    stored(newer, tmp_path, now_ms)
    tables = open_store(str(tmp_path / "store"))
    rows = [row for rows in tables.manifests(choose(tables, EVERY_TOPIC, None)).values() for row in rows]
    for row in rows:
        root = tmp_path / "store" if row.root == "store" else newer
        assert row.magics == list_magics((root / row.path).read_bytes()[: row.size_bytes])
    assert {"2", "3"} <= {row.magics for row in rows}

    walked: list[str] = []

    def walk(root: Root, path: str, size: int) -> bool:
        walked.append(path)
        return holds_magic_3(root, path, size)

    monkeypatch.setattr(restore, "holds_magic_3", walk)
    restored = restore.run(RestoreOptions(str(tmp_path / "store"), str(tmp_path / "told")), Silent())
    assert not walked

    manifests = State.manifests

    def older(*given: Any) -> dict[Any, list[Segment]]:
        return {key: [replace(row, magics=None) for row in rows] for key, rows in manifests(*given).items()}

    monkeypatch.setattr(State, "manifests", older)
    again = restore.run(RestoreOptions(str(tmp_path / "store"), str(tmp_path / "walked")), Silent())
    assert len(walked) == len(rows)
    assert read_tree(tmp_path / "walked") == read_tree(tmp_path / "told") == read_tree(tmp_path / "out")
    assert [p.converted for p in again.partitions] == [p.converted for p in restored.partitions]


def test_batch_that_exceeds_magic_2_is_refused(tmp_path: Path) -> None:
    """restore and convert name the segment and leave no part of its log in the output."""
    values = [(DAY_MS + i, b"k%d" % i, bytes(300_000)) for i in range(5)]
    logs = {0: log.data_batch(0, [(DAY_MS, b"k", b"v")]).data, 1: log.data_batch(1, values, codec=log.GZIP).data}
    (tmp_path / "archive" / "t-0").mkdir(parents=True)
    for base, data in logs.items():
        (tmp_path / "archive" / "t-0" / f"{base:020d}.log").write_bytes(data)
    newer = as_v3(tmp_path / "archive", tmp_path / "newer")
    made = CompactOptions(str(newer), str(tmp_path / "store"), now_ms=DAY_MS, config=CONFIG, force=True)
    assert compact.run(made, Silent()).exit_code == 0
    small = replace(CONFIG, topics={"t": {"max_decompressed_batch_bytes": 1 << 20}})
    options = RestoreOptions(str(tmp_path / "store"), str(tmp_path / "out"), config=small)
    with raises_kind(OTHER_FORMAT, match=r"00001\.log at byte 0.*max\.decompressed\.batch\.bytes"):
        restore.run(options, Silent())
    assert not (tmp_path / "out").exists()
    report = convert.run(ConvertOptions(str(newer), output=str(tmp_path / "v2"), to="v2", config=small), Silent())
    assert report.exit_code == 3
    assert [problem.kind for problem in report.problems] == ["bomb"]
    assert [path.stem for path in files_in(tmp_path / "v2", "t-0/*.log")] == [f"{0:020d}"]
