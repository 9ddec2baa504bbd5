"""End-to-end comparison with Kafka: compact and restore through the jobs, the broker's own cleaner on the same files.

The logs are those that a real broker writes here, and the golden ones. Each is cleaned by three passes: the first
cleaning, then 25 and 50 hours later from the log start. Every record and every batch header that is left must be equal;
only the segment that a batch lies in may differ, as empty segments are joined away (COMPACTION.md, "Intended
differences").
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.builders.trees import files_in, tree
from tests.golden import golden
from tests.kafka_lab import (
    Broker,
    CleanSpec,
    check_served,
    clean,
    digest,
    dump,
    dump_log_segments,
    index_check,
    make_logs,
    start_restored,
    without_segments,
)  # fmt: skip
from tests.kafka_lab.loading import partition_dirs

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

HOURS_25_MS = 90_000_000
SPEC = Path(__file__).with_name("logs.spec")
BAD_INDEX = re.compile(
    r"Mismatch|Index offset:|Index timestamp:|Exception|orrupt|Indexed offset|not found|out of order"
)


@dataclass(frozen=True)
class Log:
    """A partition to be cleaned, and how."""

    folder: Path
    segment_bytes: int
    first_dirty_offset: int
    now_ms: int

    @property
    def topic(self) -> str:
        return self.folder.name.rpartition("-")[0]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> list[Log]:
    """Partitions that a real broker wrote just now."""
    lines = [line for line in SPEC.read_text().splitlines() if line and not line.startswith("#")]
    with Broker(tmp_path_factory.mktemp("broker"), {"log.cleaner.enable": "false"}) as broker:
        make_logs(broker.bootstrap, lines)
    sizes = {m["topic"]: int(m["segment"]) for m in (dict(p.split("=", 1) for p in line.split()) for line in lines)}
    folders = partition_dirs([broker.data]).values()
    soon_ms = max(p.stat().st_mtime_ns for f in folders for p in f.iterdir()) // 1_000_000 + 1000
    return [Log(f, sizes[f.name.rpartition("-")[0]], 0, soon_ms) for f in folders]


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> tuple[list[Log], list[Log]]:
    """Return the golden partitions: cleaned for the first time, and from a checkpoint on."""
    cases = golden(tmp_path_factory)
    logs = [
        Log(c.input(p), c.settings["segment.bytes"], c.first_dirty_offset(1, p), c.now_ms(1, p))
        for c in cases.values()
        for p in c.partitions
    ]
    return [log for log in logs if not log.first_dirty_offset], [log for log in logs if log.first_dirty_offset]


def settings_for(logs: list[Log], split: str):
    from lastkey.jobs.command.config import parse_config

    job = {"split.by": split, "split.bytes": 1, "chunk.bytes": 1 << 16}  # small splits: a segment each, or 64 KiB of it
    topics = {log.topic: {"segment.bytes": log.segment_bytes} for log in logs}
    defaults = {"cleanup.policy": "compact", "null.keys": "drop"}  # as the broker's cleaner does
    return parse_config({"defaults": defaults, "topics": topics, "job": job})


def lay_out(logs: list[Log], archive: Path) -> None:
    archive.mkdir()
    for log in logs:
        shutil.copytree(log.folder, archive / log.folder.name, copy_function=shutil.copy2)
    checkpoints = [log for log in logs if log.first_dirty_offset]
    if checkpoints:
        lines = ["0", str(len(checkpoints))]
        lines += [f"{log.topic} {log.folder.name.rpartition('-')[2]} {log.first_dirty_offset}" for log in checkpoints]
        (archive / "cleaner-offset-checkpoint").write_text("\n".join(lines) + "\n")


def batches_and_records(folder: Path) -> list[str]:
    return without_segments(dump([folder])[folder])


def three_passes(logs: list[Log], work: Path, split: str) -> list[Path]:
    """Return the restored log directory of each pass, after comparing it with the broker's cleaner's."""
    from lastkey.jobs.command.options import CompactOptions
    from lastkey.jobs.command.progress import Silent
    from lastkey.jobs.command.store_options import RestoreOptions
    from lastkey.jobs.compact import job as compact
    from lastkey.jobs.restore import job as restore

    archive, oracle, store = work / "archive", work / "oracle", work / "store"
    lay_out(logs, archive)
    shutil.copytree(archive, oracle, copy_function=shutil.copy2)
    before = tree(archive)
    config = settings_for(logs, split)
    first_ms = max(log.now_ms for log in logs)
    outputs = []
    for number in range(3):
        now_ms = first_ms + number * HOURS_25_MS
        clean(
            CleanSpec(
                oracle / log.folder.name,
                now_ms,
                segment_bytes=log.segment_bytes,
                first_dirty_offset=0 if number else log.first_dirty_offset,
            )
            for log in logs
        )
        options = CompactOptions(str(archive), str(store), now_ms=now_ms, config=config, force=number > 0)
        report = compact.run(options, Silent())
        assert report.exit_code == 0, report.to_text()
        output = work / f"restored{number}"
        restored = restore.run(RestoreOptions(str(store), str(output)), Silent())
        assert restored.exit_code == 0, restored.to_text()
        for log in logs:
            name = log.folder.name
            ours, theirs = batches_and_records(output / name), batches_and_records(oracle / name)
            assert ours == theirs, (
                number,
                name,
                sorted(set(theirs) - set(ours))[:2],
                sorted(set(ours) - set(theirs))[:2],
            )
        checked = index_check([output / log.folder.name for log in logs], early=True)
        assert {path.name: r.failures for path, r in checked.items() if r.failures} == {}
        outputs.append(output)
    assert tree(archive) == before
    return outputs


def check_with_kafkas_tool(output: Path) -> None:
    """Check that kafka-dump-log finds nothing wrong with the indexes of the segments that we wrote."""
    files = [str(p) for p in files_in(output, "*/*index") if p.suffix in (".index", ".timeindex") and p.stat().st_size]
    for option in ("--index-sanity-check", "--verify-index-only"):
        printed = dump_log_segments(option, "--files", ",".join(files))
        assert [line for line in printed.splitlines() if BAD_INDEX.search(line)] == []


@pytest.mark.parametrize("split", ["auto", "always"])
def test_new_logs_of_a_broker_are_cleaned_and_served_as_by_kafka(split, written, tmp_path, spark):
    outputs = three_passes(written, tmp_path, split)
    check_with_kafkas_tool(outputs[0])
    for output in (outputs[0], outputs[2]):
        with start_restored(output) as broker:
            parts = partition_dirs([output])
            problems, hidden = check_served(broker.bootstrap, parts)
            assert problems == []
            # a batch that was kept empty for its producer still says a time, which no record of its segment may have
            full = [name for name, path in parts.items() if not digest([path])[path].empty_batches]
            assert len(full) > 4
            assert {name: hidden[name] for name in full if hidden[name]} == {}


@pytest.mark.parametrize("split", ["auto", "always"])
def test_golden_logs_are_cleaned_and_served_as_by_kafka(split, kept, tmp_path, spark):
    first, more = kept
    for name in ("first", "more"):
        (tmp_path / name).mkdir()
    outputs, again = (three_passes(logs, tmp_path / name, split) for logs, name in ((first, "first"), (more, "more")))
    for output in (outputs[0], again[0]):
        with start_restored(output) as broker:
            problems, _ = check_served(broker.bootstrap, partition_dirs([output]))
            assert problems == []
