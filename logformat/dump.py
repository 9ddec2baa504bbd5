"""What is in log files and side files, as kafka-dump-log prints it: text on stdout, findings on stderr. Without Spark.

The lines, and the findings at the end, are those of kafka-dump-log 4.3.0 for the same options. Different on purpose: a
file may be a URI or a folder; the checkpoints of a log directory are printed too; damage is a line on stderr and exit
code 3, and what can be read behind it is printed, where the tool ends with a stack trace.

Source: Kafka's DumpLogSegments (4.3.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import fs as pafs

from logformat import dump_indexes, names, producer_snapshot, text
from logformat.dump_indexes import IndexFindings, Pairs
from logformat.dump_log import LogFindings, LogOptions, log_lines
from logformat.errors import LogFormatError
from logformat.locations import locate

_CHECKPOINT_SUFFIX: Final = "checkpoint"  # of KRaft's snapshots: batches, as in a log
_KINDS: Final = (*names.KINDS, _CHECKPOINT_SUFFIX)
_LINES: Final = 1 << 16  # of findings made at once


@dataclass(frozen=True)
class DumpOptions:
    """As the tool's: what is printed of a log; of indexes only whether they are right, or pass a broker's check."""

    log: LogOptions = field(default_factory=LogOptions)
    verify_index_only: bool = False
    index_sanity_check: bool = False
    as_json: bool = False  # an object a line, instead of the tool's lines


@dataclass
class Findings:
    """What is said at the end, by path."""

    logs: dict[str, LogFindings] = field(default_factory=dict)
    indexes: dict[str, IndexFindings] = field(default_factory=dict)
    problems: list[LogFormatError] = field(default_factory=list)  # of files that cannot be read at all
    unknown: list[str] = field(default_factory=list)

    @property
    def all_problems(self) -> list[LogFormatError]:
        """Damage, in the order of files."""
        return [
            *self.problems,
            *(p for of in self.logs.values() for p in of.problems),
            *(p for of in self.indexes.values() for p in of.problems),
        ]

    @property
    def n_mismatches(self) -> int:
        """Index entries that contradict their log."""
        return sum(
            len(of.mismatches) + len(of.wrong_timestamps) + len(of.out_of_order) + len(of.not_found)
            for of in self.indexes.values()
        )

    def text(self) -> Iterator[str]:
        """Whole lines, many at a time: as the tool prints them, then damage.

        The tool has mismatches of offset indexes and gaps of offsets in the order of a hash map, each first offset
        once; here they rise.
        """
        for title, form, pairs in self._pairs():
            if len(pairs):
                yield f"{title}\n"
                yield from _lines(form, pairs)
        yield from (f"problem: {problem}\n" for problem in self.all_problems)

    def summary(self, most: int) -> tuple[str, ...]:
        """At most so many lines of each kind, and how many more there are."""
        said = [f"unknown: {path}" for path in self.unknown]
        for title, form, pairs in self._pairs():
            if len(pairs):
                said += [title, *"".join(_lines(form, pairs[:most])).splitlines()]
                said += [f"  and {len(pairs) - most} more"] if len(pairs) > most else []
        return (*said, *(f"problem: {problem}" for problem in self.all_problems))

    def _pairs(self) -> Iterator[tuple[str, str, NDArray[np.int64]]]:
        for path, of in self.indexes.items():
            yield f"Mismatches in :{path}", "  Index offset: {}, log offset: {}", _rising(_array(of.mismatches))
        for path, of in self.indexes.items():
            form = "  Index timestamp: {}, log timestamp: {}"
            yield f"Found timestamp mismatch in :{path}", form, _array(of.wrong_timestamps)
        for path, of in self.indexes.items():
            form = "  Index timestamp: {}, Previously indexed timestamp: {}"
            yield f"Found out of order timestamp in :{path}", form, _array(of.out_of_order)
        for path, of in self.indexes.items():
            form = "Indexed offset: {}, found log offset: {}"
            yield f"The following indexed offsets are not found in :{path}", form, _array(of.not_found)
        for path, log in self.logs.items():
            gaps = np.concatenate([_array([]), *log.not_consecutive])
            yield f"Non-consecutive offsets in {path}", "  {} is followed by {}", _rising(gaps)


def _array(pairs: Pairs) -> NDArray[np.int64]:
    return np.array(pairs, np.int64).reshape(-1, 2)


def _rising(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """By the first number; of equal ones the last pair."""
    _, last = np.unique(pairs[::-1, 0], return_index=True)
    return pairs[::-1][last]


def _lines(form: str, pairs: NDArray[np.int64]) -> Iterator[str]:
    """Pairs as lines, with their ends."""
    head, middle, tail = form.split("{}")
    for first in range(0, len(pairs), _LINES):
        left, right = (pa.array(column).cast(pa.string()) for column in pairs[first : first + _LINES].T)
        lines = pc.binary_join_element_wise(head, left, middle, right, f"{tail}\n", "")
        yield bytes(_joined(lines)).decode()


def expand(paths: Iterable[str | Path], filesystem: Any = None) -> Iterator[tuple[Any, str, str]]:
    """(file system, path on it, name to show) of files, and of what is in folders, at any depth, in order of names."""
    for given in paths:
        found, path = locate(given, filesystem)
        if found.get_file_info(path).type != pafs.FileType.Directory:
            yield found, path, str(given)
            continue
        infos = found.get_file_info(pafs.FileSelector(path, recursive=True))
        for info in sorted(infos, key=lambda info: info.path):
            if info.type == pafs.FileType.File and kind_of(info.path) is not None:
                yield found, info.path, str(given).rstrip("/") + info.path[len(path.rstrip("/")) :]


def kind_of(path: str) -> str | None:
    """What a file is by its name: one of names.KINDS, "checkpoint" (KRaft's), or the name of a text checkpoint."""
    name = path.rpartition("/")[2]
    if name in (names.LEADER_EPOCH_CHECKPOINT, *names.OFFSET_CHECKPOINTS):
        return name
    suffix = name.rpartition(".")[2]
    return suffix if "." in name and suffix in _KINDS else None


def dump(
    paths: Iterable[str | Path],
    options: DumpOptions,
    write: Callable[[Any], object],
    filesystem: Any = None,
    *,
    wanted: Callable[[str], bool] = lambda path: True,
) -> Findings:
    """Print every file that is `wanted` with `write` (bytes or a memoryview, valid during the call), and give what is
    to be said at the end. Nothing that is wrong with a file raises.
    """
    findings = Findings()
    for found, path, shown in expand(paths, filesystem):
        if not wanted(path):
            continue
        if not options.as_json:
            write(f"Dumping {shown}\n".encode())
        for lines in _file(found, path, shown, options, findings):
            write(_as_bytes(lines))
    return findings


def _file(found: Any, path: str, shown: str, options: DumpOptions, findings: Findings) -> Iterator[Any]:
    """Lines of a file; what is wrong with it is among the findings."""
    try:
        yield from _file_lines(found, path, shown, options, findings)
    except LogFormatError as error:
        findings.problems.append(error)
    except OSError as error:
        said = f"{type(error).__name__}: {str(error).split('Detail:')[-1].strip()}"
        findings.problems.append(LogFormatError("unreadable", path, 0, "a readable file", said))


def _as_bytes(lines: Any) -> memoryview:
    """Lines of a pa.StringArray, each with its end."""
    return _joined(pc.binary_join_element_wise(lines, "\n", "")) if len(lines) else memoryview(b"")


def _joined(texts: Any) -> memoryview:
    """The bytes of a pa.StringArray, one after the other."""
    _, ends, data = texts.buffers()
    first, last = (memoryview(ends).cast("i")[texts.offset + i] for i in (0, len(texts)))
    return memoryview(data)[first:last]


def _file_lines(found: Any, path: str, shown: str, options: DumpOptions, findings: Findings) -> Iterator[Any]:
    kind = kind_of(path)
    if kind in (names.LOG, _CHECKPOINT_SUFFIX):
        yield from _log_file(found, path, shown, kind, options, findings)
    elif kind in (names.INDEX, names.TIME_INDEX):
        yield from _index_file(found, path, shown, kind, options, findings)
    elif kind is None:
        findings.unknown.append(shown)
    else:
        data = _read(found, path)
        if kind == names.SNAPSHOT:
            entries = producer_snapshot.read(data, path)
            columns = text.snapshot_columns(entries) if options.as_json else {}
            yield json_of(shown, "producer", columns) if options.as_json else text.snapshot_lines(entries)
        elif kind == names.TXN_INDEX:
            yield _entries(shown, "abortedTxn", dump_indexes.transaction_index_columns(data, path), options)
        elif kind == names.LEADER_EPOCH_CHECKPOINT:
            yield _entries(shown, "leaderEpoch", dump_indexes.leader_epoch_columns(data, path), options)
        else:
            yield _entries(shown, kind, dump_indexes.offset_checkpoint_columns(data, path), options)


def json_of(shown: str, kind: str, columns: Mapping[str, Any]) -> Any:
    """JSON objects of entries, with the file that they are of and what they are."""
    return text.json_lines({"file": shown, "type": kind, **columns})


def _entries(shown: str, kind: str, columns: Mapping[str, Any], options: DumpOptions) -> Any:
    return json_of(shown, kind, columns) if options.as_json else text.field_lines(columns)


def _said(line: str, options: DumpOptions) -> Iterator[Any]:
    """A line of the tool about a file; JSON has none."""
    if not options.as_json:
        yield pa.array([line], pa.string())


def _read(found: Any, path: str) -> bytes:
    with found.open_input_file(path) as file:
        return bytes(file.read())


def _log_file(found: Any, path: str, shown: str, kind: str, options: DumpOptions, findings: Findings) -> Iterator[Any]:
    name = path.rpartition("/")[2]
    if kind == names.LOG:
        yield from _said(f"Log starting offset: {_offset(path)}", options)
    elif name == "bootstrap.checkpoint":
        yield from _said("KRaft bootstrap snapshot", options)
    else:
        end, _, epoch = name.partition(".")[0].partition("-")
        yield from _said(f"Snapshot end offset: {int(end)}, epoch: {int(epoch)}", options)
    of = findings.logs[path] = LogFindings()
    log = replace(options.log, as_json=shown if options.as_json else None)
    with found.open_input_file(path) as file:
        yield from log_lines(file, path, file.size(), log, of)
    if of.invalid_bytes:
        yield from _said(f"Found {of.invalid_bytes} invalid bytes at the end of {name}", options)


def _offset(path: str) -> int:
    name = path.rpartition("/")[2].partition(".")[0]
    if not name.isdecimal():
        raise LogFormatError("name", path, 0, "an offset of digits before the first dot", name)
    return int(name)


def _index_file(
    found: Any, path: str, shown: str, kind: str, options: DumpOptions, findings: Findings
) -> Iterator[Any]:
    base = _offset(path)
    data = _read(found, path)
    of = findings.indexes[path] = IndexFindings()
    if kind == names.INDEX and not data:
        yield from _said(f"{shown} is empty.", options)
        return
    if options.index_sanity_check:
        dump_indexes.sanity_check(kind, data, base, path)
        yield from _said(f"{shown} passed sanity check.", options)
        return
    is_offset = kind == names.INDEX
    columns_of = dump_indexes.offset_index_columns if is_offset else dump_indexes.time_index_columns
    with _log_of(found, path, of) as log:
        columns = columns_of(data, base, path, log, of)
    if not options.verify_index_only:
        yield _entries(shown, "offsetIndex" if is_offset else "timeIndex", columns, options)


@contextmanager
def _log_of(found: Any, path: str, findings: IndexFindings) -> Iterator[Any]:
    """The `.log` beside an index; None, and a problem, where there is none."""
    folder, slash, name = path.rpartition("/")
    log = f"{folder}{slash}{name.partition('.')[0]}.{names.LOG}"
    if found.get_file_info(log).type != pafs.FileType.File:
        findings.problems.append(LogFormatError("unreadable", log, 0, "the log of the index", "no such file"))
        yield None
        return
    with found.open_input_file(log) as file:
        yield file
