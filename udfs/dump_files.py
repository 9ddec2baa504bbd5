"""Log files and side files as text or JSON lines: `logformat.dump.files` with decoders by name, file by file."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

import pyarrow.compute as pc

from lastkey.logformat import names
from lastkey.logformat.dump.files import DumpFile, DumpOptions, dump_files
from lastkey.logformat.dump.findings import DumpFindings
from lastkey.logformat.dump.log import Decoder, RecordLimits, as_strings
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.listing import Segment
from lastkey.logformat.messages import coordinator_records
from lastkey.udfs.decode.decoders import decode, decoder
from lastkey.udfs.groups import groups
from lastkey.udfs.holes import ACCEPT_HINT, GapFinder, gaps_between
from lastkey.udfs.problem import Problem, attempt
from lastkey.udfs.segments import Traces
from lastkey.udfs.storage import flush_folder, make_folder, open_output, open_root

_TASK_BYTES: Final = 64 << 20
_MOST_FOUND: Final = 4 << 20  # bytes of text that a search returns of a file
_MOST_REPORTED: Final = (
    20  # findings of a kind that are reported per file: a compacted log has a gap for every removed record
)


@dataclass(frozen=True)
class DumpTask:
    """One file to dump into another."""

    file: DumpFile
    output_uri: str
    name: str  # path of the text below the output
    options: DumpOptions


@dataclass(frozen=True)
class SearchTask:
    """Files to search for the wanted records."""

    files: tuple[DumpFile, ...]
    options: DumpOptions


@dataclass(frozen=True)
class SearchedFile:
    """Result of a search in one file."""

    text: bytes | None  # None: too much to return
    findings: DumpFindings


@dataclass(frozen=True)
class Dumped:
    """Result for one dumped file."""

    facts: ClassVar[str] = "path text=name bytes=bytes_written problems=n_problems messages=tool_lines"

    path: str
    name: str
    bytes_written: int
    tool_lines: tuple[str, ...]  # findings, the first ones of each kind, and problems
    n_problems: int
    n_mismatches: int = 0


def record_decoder(records: str | None, key: str, value: str) -> Decoder:
    """Return the decoder of one of Kafka's own topics (`logformat.messages.coordinator_records`), or of keys and values
    by the names of `udfs.decode.decoders`. Raises ValueError, with the closest match, for unknown names.
    """
    if records:
        return partial(coordinator_records.decode_records, records)
    return as_strings if key == value == "string" else _Named(key, value)


@dataclass(frozen=True)
class _Named:
    key: str
    value: str

    def __post_init__(self) -> None:
        decoder(self.key)
        decoder(self.value)

    def __call__(self, keys: Any, values: Any, offsets: Any) -> tuple[Any, Any]:
        return _shown(keys, self.key), _shown(values, self.value)


def _shown(values: Any, name: str) -> Any:
    """Return values as text; a malformed value becomes `<no NAME: 0x...>` with its bytes."""
    text = decode(values, name)
    text = decode(text, "hex") if name == "payload" else text.cast("string")
    malformed = pc.and_(pc.is_valid(values), pc.is_null(text))
    if not pc.any(malformed).as_py():
        return text
    said = pc.binary_join_element_wise(f"<no {name}: 0x", decode(pc.fill_null(values, b""), "hex"), ">", "")
    return pc.if_else(malformed, said, text)


def folder_topic(file: DumpFile) -> str | None:
    """Return the topic that the name of a file's folder states; None if the folder is no partition's."""
    folder = names.parse_partition_folder(file.path.rpartition("/")[0].rpartition("/")[2])
    return None if folder is None else folder.topic


def dump_tasks(files: Iterable[DumpFile], options: DumpOptions, output_uri: str) -> list[DumpTask]:
    """Return a task for each file; texts are below the output by folder and name, with the suffix `.txt` or `.jsonl`.

    Raises ValueError if two files of one name are in folders of one name, because both would become one text.
    """
    suffix = "jsonl" if options.as_json else "txt"
    tasks: dict[str, DumpTask] = {}
    for file in files:
        folder, _, name = file.path.rpartition("/")
        text = f"{folder.rpartition('/')[2]}/{name}.{suffix}"
        if text in tasks:
            raise ValueError(f"{tasks[text].file.shown} and {file.shown} would both become {text}")
        tasks[text] = DumpTask(file, output_uri, text, options)
    return list(tasks.values())


def search_tasks(files: Sequence[DumpFile], options: DumpOptions) -> list[SearchTask]:
    """Return tasks of consecutive files, each of up to 64 MiB or a single file."""
    return [SearchTask(group, options) for group in groups(files, lambda file: file.size, _TASK_BYTES)]


def search_files(task: SearchTask) -> list[SearchedFile]:
    """Return the search result of each file of a task."""
    return [_search(file, task.options) for file in task.files]


def _search(file: DumpFile, options: DumpOptions) -> SearchedFile:
    output = io.BytesIO()

    def write(text: Any) -> None:
        if output.tell() <= _MOST_FOUND:
            output.write(text)

    findings = dump_files([file], options, write)
    return SearchedFile(output.getvalue() if output.tell() <= _MOST_FOUND else None, findings)


def dump_to_file(task: DumpTask) -> Dumped:
    """Write one log or side file as text or JSON lines. Raises OSError for a full disk only, and returns other
    problems.
    """
    done = attempt(f"{task.output_uri}/{task.name}", lambda: _dump_to_file(task))
    return Dumped(task.file.shown, task.name, 0, (str(done),), 1) if isinstance(done, Problem) else done


def _dump_to_file(task: DumpTask) -> Dumped:
    root = open_root(task.output_uri)
    folder = task.name.rpartition("/")[0]
    make_folder(root, folder)
    with open_output(root, task.name) as stream:
        findings = dump_files([task.file], task.options, stream.write)
        size = int(stream.tell())
    flush_folder(root, folder)
    return Dumped(
        task.file.shown,
        task.name,
        size,
        findings.summary(_MOST_REPORTED),
        len(findings.all_problems),
        findings.n_mismatches,
    )


def gaps_of_folder(segments: Sequence[Segment], traces: Traces, wanted: RecordLimits) -> list[Problem]:
    """Return a partition's gaps within the wanted offsets, up to the first damage: the dump reports damage itself."""
    out: list[Problem] = []
    with suppress(LogFormatError):
        out.extend(gaps_between(segments, traces, wanted.start_offset, wanted.end_offset, GapFinder(ACCEPT_HINT)))
    return out
