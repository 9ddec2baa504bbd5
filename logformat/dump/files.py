"""Printer of log files and side files in the form of kafka-dump-log: text on stdout, findings on stderr; without Spark.

The lines, and the findings at the end, are those of kafka-dump-log 4.3.0 for the same options; 4.4.0 prints some lines
otherwise (KAFKA.md, "Versions"). These differences are on purpose: a file may be a URI or a folder; the checkpoints of
a log directory are printed too; and damage is a line on stderr and exit code 3, followed by all readable data after the
damage; the tool ends with a stack trace there.

Source: Kafka's DumpLogSegments (4.3.0).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import fs as pafs

from lastkey.logformat import names
from lastkey.logformat.batches.chunks import MAX_BATCH_BYTES, NO_END
from lastkey.logformat.dump import indexes as dump_indexes
from lastkey.logformat.dump import lines as text
from lastkey.logformat.dump.findings import DumpFindings
from lastkey.logformat.dump.indexes import IndexedLog, IndexFindings
from lastkey.logformat.dump.log import LogFindings, LogOptions, log_lines
from lastkey.logformat.errors import LogFormatError, readable, stopped, without_frames
from lastkey.logformat.primitives.binary_arrays import joined_bytes
from lastkey.logformat.side_files import producer_snapshot
from lastkey.logformat.side_files.small_files import read_small_file
from lastkey.logformat.storage.locations import canonical, locate, text_entries
from lastkey.logformat.storage.regular_files import files_below, open_input

_CHECKPOINT_SUFFIX: Final = "checkpoint"  # suffix of KRaft's snapshots: they hold batches, as a log does
_KINDS: Final = (*names.KINDS, _CHECKPOINT_SUFFIX)


@dataclass(frozen=True)
class DumpOptions:
    """Options of the tool: the contents of logs to print, and the checks of indexes."""

    log: LogOptions = field(default_factory=LogOptions)
    verify_index_only: bool = False
    as_json: bool = False  # one JSON object a line, instead of the tool's lines


@dataclass(frozen=True)
class DumpFile:
    """A file to print."""

    filesystem: Any
    path: str  # on that file system
    shown: str  # its name in the output
    size: int  # bytes when it was listed; -1 if missing
    named: bool = True  # by the user; else it was found in a folder
    max_batch_bytes: int = MAX_BATCH_BYTES

    @property
    def located(self) -> str:
        """The file's name in findings: an absolute path, as in the tool, or a URI."""
        return self.shown if "://" in self.shown else self.path


def list_files(
    paths: Iterable[str | Path], filesystem: Any = None, ignored: list[str] | None = None
) -> Iterator[DumpFile]:
    """Yield the named files, and the files in named folders at any depth, sorted by path.

    `ignored` gets a line for names that are not UTF-8 and are left out. A folder that has several names counts once.
    """
    for named in paths:
        given = canonical(str(named)) if filesystem is None else str(named)
        place, path = locate(given, filesystem)
        info = place.get_file_info(path)
        if info.type != pafs.FileType.Directory:
            yield DumpFile(place, path, given, -1 if info.type == pafs.FileType.NotFound else info.size or 0)
            continue
        infos, others = text_entries(files_below(place, path))
        if others and ignored is not None:
            ignored.append(f"{given}: {others:,} files and folders whose names are not UTF-8")
        for info in sorted(infos, key=lambda info: info.path):
            if info.type == pafs.FileType.File and file_kind(info.path) is not None:
                shown = given.rstrip("/") + info.path[len(path.rstrip("/")) :]
                yield DumpFile(place, info.path, shown, info.size, named=False)


def select_files(files: Sequence[DumpFile], options: DumpOptions) -> list[DumpFile]:
    """Return the files to print: all named files, and a choice of those found in folders.

    To verify indexes, the choice is the indexes. With limits on records, it is the logs, except those whose
    offsets, by their name and the next log's, are outside of the limits.
    """
    wanted = options.log.wanted
    if options.verify_index_only:
        return [file for file in files if file.named or file_kind(file.path) in (names.INDEX, names.TIME_INDEX)]
    if wanted.everything:
        return list(files)
    logs = [file for file in files if not file.named and file_kind(file.path) == names.LOG]
    ends = {}
    for file, after in itertools.pairwise(logs):
        if file.path.rpartition("/")[0] == after.path.rpartition("/")[0]:
            ends[file.path] = _base(after.path)
    return [
        file
        for file in files
        if file.named
        or (
            file_kind(file.path) == names.LOG
            and _base(file.path, 0) < wanted.end_offset
            and ends.get(file.path, NO_END) > wanted.start_offset
        )
    ]


def _base(path: str, unknown: int = NO_END) -> int:
    file = names.parse_segment_file(path.rpartition("/")[2])
    return unknown if file is None else file.base


def file_kind(path: str) -> str | None:
    """Return a file's kind by its name: one of names.KINDS, "checkpoint" (KRaft's), or a text checkpoint's name."""
    name = path.rpartition("/")[2]
    if name in (names.LEADER_EPOCH_CHECKPOINT, *names.OFFSET_CHECKPOINTS):
        return name
    suffix = name.rpartition(".")[2]
    return suffix if "." in name and suffix in _KINDS else None


def dump(
    paths: Iterable[str | Path], options: DumpOptions, write: Callable[[Any], object], filesystem: Any = None
) -> DumpFindings:
    """Print files, and files in folders: list them by `list_files`, choose by `select_files`, print by `dump_files`."""
    return dump_files(select_files(list(list_files(paths, filesystem)), options), options, write)


def dump_files(files: Iterable[DumpFile], options: DumpOptions, write: Callable[[Any], object]) -> DumpFindings:
    """Print files with `write` (bytes or a memoryview, valid during the call), and return the findings for the end.

    A damaged file does not raise. With limits on records, logs without a match are not mentioned.
    """
    findings = DumpFindings()
    for file in files:
        for lines in _headed(f"Dumping {file.shown}", _file(file, options, findings), options):
            write(joined_bytes(pc.binary_join_element_wise(lines, "\n", "")))
    return findings


def _file(file: DumpFile, options: DumpOptions, findings: DumpFindings) -> Iterator[Any]:
    """Yield the lines of a file; damage, and any error that stops the reading, becomes a finding."""
    try:
        with readable(file.located):
            yield from _file_lines(file, options, findings)
    except Exception as error:  # the other files continue
        findings.problems.append(without_frames(stopped(error, file.located)))


def _file_lines(file: DumpFile, options: DumpOptions, findings: DumpFindings) -> Iterator[Any]:
    kind, shown, path = file_kind(file.path), file.shown, file.located
    if kind in (names.LOG, _CHECKPOINT_SUFFIX):
        yield from _log_file(file, kind, options, findings)
    elif kind in (names.INDEX, names.TIME_INDEX):
        yield from _index_file(file, kind, options, findings)
    elif kind is None:
        findings.unknown.append(shown)
    else:
        data = _read(file, 0)
        if kind == names.SNAPSHOT:
            entries = producer_snapshot.read(data, path)
            columns = text.snapshot_columns(entries) if options.as_json else {}
            yield format_json(shown, "producer", columns) if options.as_json else text.snapshot_lines(entries)
        elif kind == names.TXN_INDEX:
            yield _entries(shown, "abortedTxn", dump_indexes.transaction_index_columns(data, path), options)
        elif kind == names.LEADER_EPOCH_CHECKPOINT:
            yield _entries(shown, "leaderEpoch", dump_indexes.leader_epoch_columns(data, path), options)
        else:
            yield _entries(shown, kind, dump_indexes.offset_checkpoint_columns(data, path), options)


def format_json(shown: str, kind: str, columns: Mapping[str, Any]) -> Any:
    """Return entries as JSON objects, each with its file and type."""
    return text.json_lines({"file": shown, "type": kind, **columns})


def _entries(shown: str, kind: str, columns: Mapping[str, Any], options: DumpOptions) -> Any:
    return format_json(shown, kind, columns) if options.as_json else text.field_lines(columns)


def _tool_line(line: str, options: DumpOptions) -> Iterator[Any]:
    """Yield one of the tool's lines about a file; JSON output has none."""
    if not options.as_json:
        yield pa.array([line], pa.string())


def _headed(head: str, lines: Iterator[Any], options: DumpOptions) -> Iterator[Any]:
    """Yield the head and then the lines; with limits on records, no head without lines."""
    head_line = _tool_line(head, options)
    if options.log.wanted.everything:
        yield from head_line
    for part in lines:
        if len(part):
            yield from head_line
            yield part


def _read(file: DumpFile, log_bytes: int) -> bytes:
    return read_small_file(file.filesystem, file.path, file.located, log_bytes)


def _log_bytes(file: DumpFile) -> int:
    """Return the size of the `.log` beside an index, 0 if there is none."""
    info = file.filesystem.get_file_info(f"{file.path.rpartition('.')[0]}.{names.LOG}")
    return int(info.size or 0) if info.type == pafs.FileType.File else 0


def _log_file(file: DumpFile, kind: str, options: DumpOptions, findings: DumpFindings) -> Iterator[Any]:
    path, name = file.located, file.path.rpartition("/")[2]
    head = _log_head(path, kind)
    of = findings.logs[path] = LogFindings()
    log = replace(options.log, as_json=file.shown if options.as_json else None, max_batch_bytes=file.max_batch_bytes)

    def lines() -> Iterator[Any]:
        with open_input(file.filesystem, file.path) as opened:
            yield from log_lines(opened, path, opened.size(), log, of)

    yield from _headed(head, lines(), options)
    if of.invalid_bytes and options.log.wanted.everything:
        yield from _tool_line(f"Found {of.invalid_bytes} invalid bytes at the end of {name}", options)


def _log_head(path: str, kind: str) -> str:
    name = path.rpartition("/")[2]
    if kind == names.LOG:
        return f"Log starting offset: {_offset(path)}"
    if name == "bootstrap.checkpoint":
        return "KRaft bootstrap snapshot"
    end, _, epoch = name.partition(".")[0].partition("-")
    return f"Snapshot end offset: {int(end)}, epoch: {int(epoch)}"


def _offset(path: str) -> int:
    name = path.rpartition("/")[2].partition(".")[0]
    if not name.isdecimal():
        raise LogFormatError("name", path, 0, "an offset of digits before the first dot", name)
    return int(name)


def _index_file(file: DumpFile, kind: str, options: DumpOptions, findings: DumpFindings) -> Iterator[Any]:
    path, shown = file.located, file.shown
    base = _offset(path)
    data = _read(file, _log_bytes(file))
    of = findings.indexes[path] = IndexFindings()
    if kind == names.INDEX and not data:
        yield from _tool_line(f"{shown} is empty.", options)
        return
    is_offset = kind == names.INDEX
    columns_of = dump_indexes.offset_index_columns if is_offset else dump_indexes.time_index_columns
    with _open_log(file, of) as log:
        columns = columns_of(data, IndexedLog(base, path, log, of, file.max_batch_bytes))
    if not options.verify_index_only:
        yield _entries(shown, "offsetIndex" if is_offset else "timeIndex", columns, options)
    elif options.as_json:  # the tool's lines about them come at the end, on stderr
        yield from (format_json(shown, kind, found) for kind, found in of.contradictions())


@contextmanager
def _open_log(file: DumpFile, findings: IndexFindings) -> Iterator[Any]:
    """Open the `.log` beside an index. If there is none, report a problem and yield None."""
    log, shown = (f"{path.rpartition('.')[0]}.{names.LOG}" for path in (file.path, file.located))
    if file.filesystem.get_file_info(log).type != pafs.FileType.File:
        findings.problems.append(LogFormatError("unreadable", shown, 0, "the log of the index", "no such file"))
        yield None
        return
    with open_input(file.filesystem, log) as opened:
        yield opened
