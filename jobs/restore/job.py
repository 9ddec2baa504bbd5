"""A generation of the store -> a log directory that a broker starts on with no recovery.

  checkpoints, cleaner_runs, log_segments -> which files, from the store and from the archive (nothing is written yet)
  every file is there, at least as long as its row says -> copies, checksum by checksum, partitions in parallel
  -> recovery-point, high watermark, cleaner and log-start checkpoints -> .kafka_cleanshutdown, last of all

The archive and the store are only read. A restore that fails takes away what it wrote, and nothing else: what somebody
else put into the folder meanwhile stays, and the error names it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from pyarrow import fs as pafs

from jobs.archive.listing import Archive, list_archive
from jobs.archive.places import Place, check_apart, check_empty, check_outside, is_same
from jobs.command.options import RestoreOptions
from jobs.command.progress import Progress
from jobs.command.reporting import JobReport, count, said, seconds, size, table
from jobs.errors import (
    LogStartError,
    MissingFileError,
    NoGenerationError,
    RestoreFullError,
    UsageError,
)
from jobs.restore.copy_files import Made, copy_log, copy_small, finish
from jobs.spark.stores import open_tables
from jobs.store.generations import (
    Generation,
    Key,
    StoreTables,
    current_generation,
    made_by,
    manifests_of,
    open_store,
    runs_at,
)
from jobs.store.rows import RunRow, Segment
from jobs.topics import matching, of_topics
from logformat import names
from logformat.errors import is_full
from logformat.locations import text_entries
from logformat.side_files.checkpoints import write_clean_shutdown, write_offset_checkpoint
from udfs.storage import Root, normal_uri, open_root, write_file

_THREADS = 2 * (os.cpu_count() or 1)
_NAMED = 10  # files that an error names


@dataclass
class RestoredPartition:
    """What was restored of one partition."""

    topic: str
    partition: int
    generation: int
    log_start_offset: int
    next_offset: int
    segments: int = 0
    from_archive: int = 0
    bytes: int = 0
    reflinked: int = 0


@dataclass
class RestoreReport(JobReport):
    """What `restore` hands back."""

    output: str
    partitions: list[RestoredPartition] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)  # what the archive holds and the store does not

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "job": "restore", "exit_code": self.exit_code, "output": self.output,
            "partitions": [vars(p) for p in self.partitions], "beyond": self.beyond, "notes": self.notes,
            "seconds": self.seconds_json(),
        }  # fmt: skip

    def to_text(self) -> str:
        """For people."""
        header = ("partition", "generation", "offsets", "segments", "of the archive", "bytes")
        rows = [
            (f"{p.topic}-{p.partition}", str(p.generation), f"{p.log_start_offset}..{p.next_offset}",
             count(p.segments), count(p.from_archive), size(p.bytes))
            for p in self.partitions
        ]  # fmt: skip
        lines = [table(header, rows, left=(0,)), ""]
        if self.beyond:
            lines += ["In the archive, not in the store:", *(f"  {line}" for line in self.beyond), ""]
        lines += said("note", self.notes)
        total = sum(p.bytes for p in self.partitions)
        reflinked = sum(p.reflinked for p in self.partitions)
        shared = f", {reflinked} files share their blocks with the originals" if reflinked else ""
        lines.append(
            f"{len(self.partitions)} partitions, {size(total)} restored to {self.output} "
            f"in {seconds(self.seconds.get('total', 0.0))}{shared}"
        )
        return "\n".join(lines)


def run(options: RestoreOptions, progress: Progress) -> RestoreReport:
    """Restore the current generation, or `options.generation`, of every partition that the topics name."""
    began = time.monotonic()
    output = open_root(normal_uri(options.output))
    check_empty(output)
    store = open_store(options.store)
    check_apart(Place("--output", output.uri), Place("the store", store.uri))
    tables = open_tables(store)
    targets = choose(tables, options.topics, options.generation)
    for target in targets:
        if target.log_start_offset > target.next_offset:
            shown = f"{target.name}, generation {target.generation}"
            raise LogStartError(path=shown, expected=target.next_offset, found=target.log_start_offset)
    manifests = manifests_of(tables, targets)
    archives = {t.archive_uri: open_root(normal_uri(options.archive or t.archive_uri)) for t in targets}
    listed = _apart(output, archives, options)
    side_files = _check_files(tables, store, archives, targets, manifests)
    report = RestoreReport(output.uri)
    report.notes += _before_resets(tables, targets) if options.generation is not None else []
    report.seconds["plan"] = round(time.monotonic() - began, 3)
    progress.start("restore", sum(s.size_bytes for rows in manifests.values() for s in rows), "B")
    made = Made(output)
    try:
        made.folder("")
        with ThreadPoolExecutor(_THREADS) as pool:
            jobs = [
                pool.submit(_restore_partition, t, manifests[t.key], side_files[t.key], store, archives, made, progress)
                for t in targets
            ]
            try:
                report.partitions = [job.result() for job in jobs]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        _write_checkpoints(made, targets, manifests)
    except BaseException as error:  # interrupted as well: half a log directory must not look like one
        left = made.take_back()
        if left:
            error.add_note(f"left in {output.uri}: {_first(left)}")
        if is_full(error):
            full = RestoreFullError(path=output.uri, found="disk full")
            for note in getattr(error, "__notes__", ()):
                full.add_note(note)
            raise full from error
        raise
    _list_beyond(report, listed, targets, manifests)
    report.seconds["total"] = round(time.monotonic() - began, 3)
    return report


def choose(tables: StoreTables, topics: str | None, generation: int | None) -> list[Generation]:
    """The partitions that a glob names, each at one generation (None: its current one)."""
    current = of_topics(topics, tables.checkpoints())
    if not current:
        raise UsageError(message=f"{tables.root.uri}: no partition of the store matches --topics {topics or '*'}")
    if generation is None or all(row.generation == generation for row in current.values()):
        return [current_generation(row) for _, row in sorted(current.items())]
    chains = tables.histories({topic for topic, _ in current})
    runs = runs_at(current, chains, generation)
    for key in sorted(current):
        if key not in runs:
            raise NoGenerationError(
                partition=names.partition_folder(*key), found=generation, reason="never committed",
                expected=_listed(_still_there(tables, chains[key])),
            )  # fmt: skip
    return [made_by(run) for _, run in sorted(runs.items())]


def _before_resets(tables: StoreTables, targets: Sequence[Generation]) -> Iterator[str]:
    """Which of the generations come before one that began anew: then the archive holds another log, or a part of it."""
    chains = tables.histories({t.topic for t in targets})
    for target in targets:
        later = [
            r.generation_after for r in chains[target.key] if r.began_anew and r.generation_after > target.generation
        ]
        if later:
            yield (
                f"{target.name}: generation {target.generation} is of before the --reset that began generation "
                f"{min(later)} anew: what the archive holds now need not follow it"
            )


def _apart(output: Root, archives: Mapping[str, Root], options: RestoreOptions) -> dict[str, Archive | None]:
    """The archives' listings, each archive's once (None: it cannot be read). Raises where the output is in one."""
    written = Place("--output", output.uri)
    listed: dict[str, Archive | None] = {}
    for root in archives.values():
        if any(is_same(root.uri, known) for known in listed):
            continue
        check_apart(written, Place("the archive", root.uri))
        try:
            listed[root.uri] = list_archive(root, matching(options.topics))
        except OSError:
            listed[root.uri] = None
    for archive in filter(None, listed.values()):
        check_outside(written, archive)
    return listed


def _check_files(
    tables: StoreTables, store: Root, archives: Mapping[str, Root], targets: Sequence[Generation],
    manifests: Mapping[Key, Sequence[Segment]],
) -> dict[Key, list[str]]:  # fmt: skip
    """The side files of each partition; raises where a file of a manifest is not there, before anything is written."""
    side_files: dict[Key, list[str]] = {}
    missing: list[str] = []
    for target in targets:
        listed = store.filesystem.get_file_info(pafs.FileSelector(store.full(target.folder), allow_not_found=True))
        here = {info.base_name for info in text_entries(listed)[0] if info.type == pafs.FileType.File}
        absent = _absent(store, [s for s in manifests[target.key] if s.root == "store"])
        expected = {names.segment_file(s.base_offset, names.INDEX) for s in manifests[target.key]}
        absent += [f"{target.folder}/{name}" for name in sorted(expected - here)]
        if absent:
            chain = tables.histories({target.topic}).get(target.key, [])
            if chain and chain[0].run_id == target.run_id:  # the current one: its files must be there
                missing += [f"{store.uri}/{path}" for path in absent]
                continue
            raise NoGenerationError(
                partition=target.name, found=target.generation, reason=f"its files are gone ({absent[0]})",
                expected=_listed(_still_there(tables, chain)),
            )  # fmt: skip
        side_files[target.key] = sorted(
            name for name in here
            if name in names.PARTITION_SIDE_FILES
            or ((file := names.parse_segment_file(name)) and not file.suffix and file.kind != names.LOG)
        )  # fmt: skip
        archive = archives[target.archive_uri]
        archived = [s for s in manifests[target.key] if s.root == "archive"]
        missing += [f"{archive.uri}/{path}" for path in _absent(archive, archived)]
    if missing:
        raise MissingFileError(
            path=_first(missing), expected="the files that the generation names", found="no such file"
        )
    return side_files


def _first(paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(paths[:_NAMED]) + more


def _absent(root: Root, segments: Sequence[Segment]) -> list[str]:
    """Paths of segments that are not there, or shorter than their rows say."""
    infos = root.filesystem.get_file_info([root.full(s.path) for s in segments]) if segments else []
    return [
        s.path for s, info in zip(segments, infos, strict=True)
        if info.type != pafs.FileType.File or info.size < s.size_bytes
    ]  # fmt: skip


def _still_there(tables: StoreTables, chain: Sequence[RunRow]) -> list[int]:
    """Generations of one partition whose files in the store are all there."""
    manifest: dict[str, list[Segment]] = {row.run_id: [] for row in chain}
    for segment in tables.segments_of_runs(manifest):
        if chain and (segment.topic, segment.partition) == (chain[0].topic, chain[0].partition):
            manifest[segment.run_id].append(segment)
    there = []
    for row in chain:
        folder = tables.root.filesystem.get_file_info(tables.root.full(made_by(row).folder))
        ours = [s for s in manifest[row.run_id] if s.root == "store"]
        if folder.type == pafs.FileType.Directory and not _absent(tables.root, ours):
            there.append(row.generation_after)
    return there


def _restore_partition(
    target: Generation,
    segments: Sequence[Segment],
    side_files: Sequence[str],
    store: Root,
    archives: Mapping[str, Root],
    made: Made,
    progress: Progress,
) -> RestoredPartition:
    out = RestoredPartition(
        target.topic, target.partition, target.generation, target.log_start_offset, target.next_offset
    )
    output = made.folder(target.name)
    mtimes = {s.base_offset: s.mtime_ms for s in segments}
    for segment in segments:
        source = store if segment.root == "store" else archives[target.archive_uri]
        to = f"{target.name}/{names.segment_file(segment.base_offset, names.LOG)}"
        out.reflinked += copy_log(source, segment.path, output, made.file(to), segment.size_bytes, segment.checksum)
        finish(output, to, segment.mtime_ms)
        out.segments += 1
        out.from_archive += segment.root == "archive"
        out.bytes += segment.size_bytes
        progress.advance(segment.size_bytes)
    for name in side_files:
        to = f"{target.name}/{name}"
        out.bytes += copy_small(store, f"{target.folder}/{name}", output, made.file(to))
        file = names.parse_segment_file(name)
        finish(output, to, mtimes.get(file.base) if file is not None and file.kind != names.SNAPSHOT else None)
    finish(output, target.name, None)
    return out


def _write_checkpoints(made: Made, targets: Sequence[Generation], manifests: Mapping[Key, Sequence[Segment]]) -> None:
    ends = {t.key: t.next_offset for t in targets}
    starts = {  # Kafka writes those above the first segment's base only: the others are known from it
        t.key: t.log_start_offset for t in targets
        if t.log_start_offset > (manifests[t.key][0].base_offset if manifests[t.key] else 0)
    }  # fmt: skip
    for name, offsets in (
        (names.RECOVERY_POINT_CHECKPOINT, ends),
        (names.HIGH_WATERMARK_CHECKPOINT, ends),
        (names.CLEANER_OFFSET_CHECKPOINT, {t.key: t.first_dirty_offset for t in targets}),
        (names.LOG_START_OFFSET_CHECKPOINT, starts),
    ):
        write_file(made.root, made.file(name), write_offset_checkpoint(offsets))
    # Last: with it a broker trusts everything above, without it it looks at every segment itself.
    write_file(made.root, made.file(names.CLEAN_SHUTDOWN), write_clean_shutdown())
    finish(made.root, "", None)


def _list_beyond(
    report: RestoreReport, listed: Mapping[str, Archive | None], targets: Sequence[Generation],
    manifests: Mapping[Key, Sequence[Segment]],
) -> None:  # fmt: skip
    """What lies in the archive at or beyond each partition's end, and partitions that the store does not hold."""
    ends = {t.key: t.next_offset for t in targets}
    for uri, archive in listed.items():
        if archive is None:
            report.notes.append(f"{uri}: the archive cannot be read; what it holds beyond the store is not known")
            continue
        for key, partition in sorted(archive.partitions.items()):
            if key not in ends:
                total = sum(s.size for s in partition.segments)
                report.beyond.append(f"{partition.path}: {len(partition.segments)} segments, {size(total)}")
                continue
            used = {s.path: s.size_bytes for s in manifests[key] if s.root == "archive"}
            report.beyond += [
                f"{s.path}: {size(s.size - used.get(s.path, 0))} from offset {max(s.base_offset, ends[key])} on"
                for s in partition.segments
                if s.size > used.get(s.path, s.size if s.base_offset < ends[key] else 0)
            ]


def _listed(generations: Iterable[int]) -> str:
    known = sorted(generations)
    return "one that is still there: " + ", ".join(map(str, known)) if known else "none is left"
