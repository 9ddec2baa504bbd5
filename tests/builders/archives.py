"""Archives for tests of whole runs: golden partitions under other names, cut at batch borders, grown later."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lastkey.jobs.command.config import parse_config
from lastkey.jobs.command.options import CompactOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.compact import job as compact
from lastkey.jobs.compact.report import CompactReport
from lastkey.jobs.store.tables import State, open_state
from lastkey.logformat.listing import Segment
from lastkey.logformat.names import partition_folder
from lastkey.udfs.compact.plan import PartitionResult
from tests.builders.trees import files_in
from tests.golden import Case
from tests.reference.log import Batch, decode_log

HOUR = 3_600_000
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0}


def borders(data: bytes) -> list[int]:
    """Return the positions at which batches end, of any magic."""
    out, at = [], 0
    while at < len(data):
        at += 12 + struct.unpack_from(">i", data, at + 8)[0]
        out.append(at)
    return out


def put(source: Path, target: Path, *, segments: int | None = None, batches: int = 0) -> Path:
    """Copy a partition's folder; a target that exists grows, as the log of a running broker does. Keeps file times.

    segments: copy only the first of them, and `batches` of the next one, which is then the active segment.
    """
    target.mkdir(parents=True, exist_ok=True)
    kept = files_in(source) if segments is None else files_in(source)[: segments + bool(batches)]
    end = int(kept[-1].stem)
    for path in sorted(source.iterdir()):
        if path.suffix == ".log" and path not in kept:
            continue
        if (
            path.stem.isdigit()
            and segments is not None
            and int(path.stem) >= end
            and path.suffix not in (".log", ".snapshot")
        ):
            continue  # indexes of an active segment say more than the cut log holds
        if path.stem.isdigit() and segments is not None and int(path.stem) > end:
            continue
        shutil.copy2(path, target)
    if batches:
        cut(target / kept[-1].name, batches)
    return target


def cut(log: Path, batches: int, *, torn: int = 0) -> None:
    """Keep the first batches of a file, and `torn` bytes of the next one."""
    data, stat = log.read_bytes(), log.stat()
    log.write_bytes(data[: borders(data)[batches - 1] + torn])
    os.utime(log, ns=(stat.st_mtime_ns, stat.st_mtime_ns))


def offset_checkpoint(path: Path, entries: dict[str, int]) -> None:
    """Write one of the offset checkpoints: partition's folder name -> offset."""
    lines = [f"{name.rpartition('-')[0]} {name.rpartition('-')[2]} {offset}\n" for name, offset in entries.items()]
    path.write_text(f"0\n{len(lines)}\n" + "".join(lines))


def contents(batches: list[Batch]) -> list[tuple[Any, ...]]:
    """Return what a reader sees: batches that hold records, with the range of offsets that each one covers."""
    return [(b.base_offset, b.last_offset, b.control, b.records) for b in batches if b.records]


def log_directory(cases: Mapping[str, Case], names: Sequence[str], archive: Path) -> Path:
    """Write a log directory `disk` with golden partitions, and a log start that is theirs. Returns the archive."""
    for name in names:
        for partition in cases[name].partitions:
            put(cases[name].input(partition), archive / "disk" / partition)
    (archive / "disk" / "log-start-offset-checkpoint").write_text("0\n1\nnone-tomb 0 3\n")
    return archive


@dataclass
class Lab:
    """Archive and store of a test. spark: a session, in whose tasks jobs run; None: they run in threads."""

    spark: Any
    root: Path
    settings: dict[str, Any] = field(default_factory=lambda: {"defaults": COMPACT})
    archive_at: Path | None = None  # elsewhere than in the root
    store_at: Path | None = None

    @property
    def archive(self) -> Path:
        return self.archive_at or self.root / "archive"

    @property
    def store(self) -> Path:
        return self.store_at or self.root / "store"

    def run(self, now_ms: int, *, settings: dict[str, Any] | None = None, **options: Any) -> CompactReport:
        """Run the job once."""
        given = settings or self.settings
        job = {"engine": "spark" if self.spark else "threads"} | given.get("job", {})
        config = parse_config(given | {"job": job})
        made = CompactOptions(archive=str(self.archive), store=str(self.store), now_ms=now_ms, config=config, **options)
        return compact.run(made, Silent())

    def state(self) -> State:
        return open_state(str(self.store))

    def folder(self, key: tuple[str, int] = ("t", 0)) -> Path:
        """Return the folder of a partition's current generation."""
        return self.store / self.state().checkpoints()[key].folder

    def generation_folder(self, generation: int) -> Path:
        """Return a generation's own folder, of t-0."""
        return next((self.store / "segments" / "t-0").glob(f"{generation}-*"))

    def path(self, segment: Segment) -> Path:
        return (self.store if segment.root == "store" else self.archive) / segment.path

    def batches(self, segments: list[Segment]) -> list[Batch]:
        """Return a generation's batches."""
        return [b for s in segments for b in decode_log(self.path(s).read_bytes()[: s.size_bytes])]

    def check_whole(self, segments: list[Segment]) -> None:
        """Check that a manifest is whole: files, sizes, side files, ranges without gap or overlap."""
        partition = Path(segments[0].path).parts[1 if segments[0].root == "store" else -2]
        [current] = [row for key, row in self.state().checkpoints().items() if partition_folder(*key) == partition]
        folder = self.store / current.folder
        for segment, after in zip(segments, [*segments[1:], None], strict=True):
            assert self.path(segment).stat().st_size >= segment.size_bytes
            if segment.root == "store":
                assert self.path(segment).stat().st_size == segment.size_bytes
            stem = f"{segment.base_offset:020d}"
            assert (folder / f"{stem}.index").stat().st_size == segment.offset_index_bytes
            assert (folder / f"{stem}.timeindex").stat().st_size == segment.time_index_bytes
            assert (folder / f"{stem}.txnindex").exists() == (segment.txn_index_bytes > 0)
            assert segment.last_offset < segment.next_offset
            if after is not None:
                assert after.base_offset >= segment.next_offset
        assert (folder / f"{segments[-1].next_offset:020d}.snapshot").exists()
        assert (folder / "leader-epoch-checkpoint").exists()


def by_topic(report: CompactReport) -> dict[str, PartitionResult]:
    """Return the results of the partitions numbered 0."""
    return {r.topic: r for r in report.results if r.partition == 0}


def only_input(case: Case) -> Path:
    """Return the input folder of a case's first partition."""
    return case.input(case.partitions[0])
