"""Partitions as folders for tests of the compaction: laid out from decoded batches, compacted, read again."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

from lastkey.logformat import listing
from lastkey.logformat.names import segment_file
from lastkey.udfs.compact.compact_partition import compact_partition
from lastkey.udfs.compact.plan import CleanSettings, Limits, PartitionPlan, PartitionResult
from lastkey.udfs.segments import SideFile
from tests.builders.plans import made_plan
from tests.golden import Case
from tests.reference.cleaner import AbortedTxn, Log, Segment, Settings, replay
from tests.reference.log import Batch, decode_log
from tests.reference.producer_state import State

_TXN_ENTRY = struct.Struct(">hqqqq")


@dataclass
class Archived:
    """Content of an archive's folder, as the listing would have it."""

    root: Path
    segments: list[listing.Segment] = field(default_factory=list)
    snapshots: list[SideFile] = field(default_factory=list)
    txn_indexes: list[SideFile] = field(default_factory=list)


def lay_out(root: Path, segments: list[Segment] | tuple[Segment, ...]) -> Archived:
    """Write the `.log` files of a partition and nothing else: everything beside them can be rebuilt."""
    out = Archived(root)
    (root / "t-0").mkdir(parents=True, exist_ok=True)
    for s in segments:
        data = b"".join(b.data for b in s.batches)
        path = f"t-0/{segment_file(s.base_offset, 'log')}"
        (root / path).write_bytes(data)
        out.segments.append(listing.Segment(str(root), path, s.base_offset, len(data), s.mtime_ms))
    return out


def archived_at(root: Path, partition: str) -> Archived:
    """Return a folder as the archive's listing would have it."""
    out = Archived(root)
    for path in sorted((root / partition).iterdir()):
        relative, stat = f"{partition}/{path.name}", path.stat()
        if path.suffix == ".log":
            out.segments.append(
                listing.Segment(str(root), relative, int(path.stem), stat.st_size, stat.st_mtime_ns // 1_000_000)
            )
        elif path.suffix == ".snapshot":
            out.snapshots.append(SideFile(str(root), relative, int(path.stem)))
        elif path.suffix == ".txnindex":
            out.txn_indexes.append(SideFile(str(root), relative, int(path.stem)))
    return out


def make_plan(
    archived: Archived,
    store: Path,
    settings: Settings,
    *,
    now_ms: int,
    log_start_offset: int,
    checkpoint: int | None = None,
    high_watermark: int | None = None,
    sealed: bool = False,
    force: bool = True,
    null_keys: str = "drop",
    gaps: str = "accept",
    limits: Limits = Limits(),  # noqa: B008 - frozen
    min_dirty_ratio: float = 0.0,
    dry_run: bool = False,
    secret: tuple[int, int] = (0x0123456789ABCDEF, 0x0F1E2D3C4B5A6978),
) -> PartitionPlan:
    return made_plan(
        topic="t", partition=0, store_uri=str(store), folder="out",
        segments=tuple(archived.segments), log_start_offset=log_start_offset, first_dirty_offset=checkpoint,
        high_watermark=high_watermark, sealed=sealed, force=force, dry_run=dry_run, now_ms=now_ms,
        settings=CleanSettings(
            delete_retention_ms=settings.delete_retention_ms,
            min_compaction_lag_ms=settings.min_compaction_lag_ms,
            min_cleanable_dirty_ratio=min_dirty_ratio,
            segment_bytes=settings.segment_bytes,
            segment_index_bytes=settings.segment_index_bytes,
            index_interval_bytes=settings.index_interval_bytes,
            null_keys=null_keys,  # type: ignore[arg-type]
            gaps=gaps,  # type: ignore[arg-type]
        ),
        limits=limits, secret=secret, snapshots=tuple(archived.snapshots), txn_indexes=tuple(archived.txn_indexes),
    )  # fmt: skip


@dataclass
class Outcome:
    """Result of a compaction with its files read again."""

    result: PartitionResult
    plan: PartitionPlan

    def path(self, number: int) -> Path:
        segment = self.result.log.segments[number]
        read = {s.path: s.root for s in self.plan.input.segments}
        return Path(read[segment.path] if segment.root == "archive" else self.plan.run.store_uri) / segment.path

    def side_file(self, number: int, kind: str) -> Path:
        """Return the path beside segment `number` in the generation's folder."""
        return (
            Path(self.plan.run.store_uri)
            / self.plan.run.folder
            / segment_file(self.result.log.segments[number].base_offset, kind)
        )

    def segments(self) -> list[Segment]:
        return [
            Segment(s.base_offset, tuple(decode_log(self.path(i).read_bytes()[: s.size_bytes])), s.mtime_ms)
            for i, s in enumerate(self.result.log.segments)
        ]

    def aborted(self) -> tuple[AbortedTxn, ...]:
        out: list[AbortedTxn] = []
        for i in range(len(self.result.log.segments)):
            path = self.side_file(i, "txnindex")
            if path.exists():
                out += [AbortedTxn(*e[1:]) for e in _TXN_ENTRY.iter_unpack(path.read_bytes())]
        return tuple(out)

    def files(self) -> dict[str, bytes]:
        """Return every file of the generation."""
        folder = Path(self.plan.run.store_uri) / self.plan.run.folder
        return {p.name: p.read_bytes() for p in sorted(folder.iterdir())} if folder.exists() else {}

    def as_archive(self, root: Path, *, snapshots: bool) -> Archived:
        """Lay the generation out as a folder of its own, as `restore` does it."""
        folder = root / "t-0"
        folder.mkdir(parents=True)
        out = Archived(root)
        for i, s in enumerate(self.result.log.segments):
            path = f"t-0/{segment_file(s.base_offset, 'log')}"
            (root / path).write_bytes(self.path(i).read_bytes()[: s.size_bytes])
            os.utime(root / path, ns=(s.mtime_ms * 1_000_000,) * 2)
            out.segments.append(listing.Segment(str(root), path, s.base_offset, s.size_bytes, s.mtime_ms))
        for name, data in self.files().items():
            offset, _, kind = name.partition(".")
            if kind == "log" or (kind == "snapshot" and not snapshots):
                continue
            (folder / name).write_bytes(data)
            if kind == "snapshot":
                out.snapshots.append(SideFile(str(root), f"t-0/{name}", int(offset)))
            if kind == "txnindex":
                out.txn_indexes.append(SideFile(str(root), f"t-0/{name}", int(offset)))
        return out


def golden_plan(case: Case, partition: str, number: int, archived: Archived, store: Path) -> PartitionPlan:
    """Return the plan of a golden pass: pass 1 begins at the broker's checkpoint, later ones at the log start. Null
    keys are dropped, as by the broker.
    """
    settings = Settings(
        delete_retention_ms=case.settings["delete.retention.ms"],
        min_compaction_lag_ms=case.settings["min.compaction.lag.ms"],
        segment_bytes=case.settings["segment.bytes"],
        segment_index_bytes=case.settings["segment.index.bytes"],
        index_interval_bytes=case.settings["index.interval.bytes"],
    )
    return make_plan(
        archived, store, settings, now_ms=case.now_ms(number, partition), log_start_offset=case.log_start(partition),
        checkpoint=case.first_dirty_offset(number, partition), force=number > 1,
    )  # fmt: skip


def compact(plan: PartitionPlan) -> Outcome:
    return Outcome(compact_partition(plan), plan)


def log_end(segments: list[Segment] | tuple[Segment, ...]) -> int:
    """Return the offset after the last batch."""
    last = segments[-1]
    return last.batches[-1].last_offset + 1 if last.batches else last.base_offset


def load(
    segments: list[Segment] | tuple[Segment, ...],
    log_start_offset: int,
    *,
    sealed: bool = False,
    aborted: tuple[AbortedTxn, ...] | None = None,
    producers: State | None = None,
) -> Log:
    """Return a broker's state after loading these segments: from the logs alone, or with their side files."""
    state = State()
    replayed = replay([b for s in segments for b in s.batches], state)
    return Log(
        segments=tuple(segments),
        log_start_offset=log_start_offset,
        log_end_offset=log_end(segments),
        aborted=tuple(replayed) if aborted is None else aborted,
        producers=state if producers is None else producers,
        sealed=sealed,
    )


def survivors(segments: list[Segment] | tuple[Segment, ...]) -> list[Batch]:
    return [b for s in segments for b in s.batches]
