"""One `.log` -> the same log in another message format, with the indexes of the new file (FORMAT.md, "Magic 3").

A stream: chunks are read and checked, converted (`logformat.writing.formats`), written, and counted for the indexes, in
the memory of a chunk. Bytes at the end that are no batch come along as they are.

A killed run leaves no partial file that looks complete, and the next run continues:

  convert.part           beside the partitions, written first, removed last: states what is converted
  <topic>-<n>.part       folder of a partition, until all that it will hold is there; then it gets its own name
  <base>.log.part, ...   files of a segment that is being written; it is whole once its log and both indexes have names

Names that end so are no log's for a listing, and a broker that finds such a folder does not start. An object of a
bucket cannot be renamed, but it appears whole or not at all. So there the files have their names at once. There
`<topic>-<n>.part` is an object beside the folder, and a listing leaves out the folder until that object is deleted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
from pyarrow import fs as pafs

from lastkey.logformat import names
from lastkey.logformat.batches.chunks import Chunk, read_exactly
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.layout import MAX_SEGMENT_BYTES
from lastkey.logformat.listing import Segment
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.logformat.writing.formats import Converted, Converter, Magic
from lastkey.udfs.problem import Problem, attempt
from lastkey.udfs.read_back import check_written
from lastkey.udfs.segments import LogSettings
from lastkey.udfs.storage import (
    Root,
    exists,
    flush,
    flush_folder,
    log_file,
    make_folder,
    open_output,
    open_root,
    opened,
    read_file,
    set_time,
    write_file,
)

_PIECE: Final = 8 << 20
_SPARE: Final = 8  # this part of the limit is left for the way back to magic 2


@dataclass(frozen=True)
class ConvertSettings(LogSettings):
    """Settings of a conversion."""

    magic: Magic = 2


@dataclass(frozen=True)
class ConvertedLog:
    """A log that has been written, and the files beside it."""

    size: int
    batches: int
    changed: int  # batches that have the other format now
    source_checksum: int  # CRC-32C of the bytes that were read
    checksum: int  # ... and of those that were written
    offset_index: bytes
    time_index: bytes


def convert_log(
    segment: Segment, source: Root, target: Root, to: str, settings: ConvertSettings, limit: int = MAX_SEGMENT_BYTES
) -> ConvertedLog:
    """Write a segment's log to another file, in the format of the settings.

    limit: maximum size of a log. Magic 3 may be larger than magic 2 if the producer compressed better than this writer,
    and the way back larger still: if the log would come near the limit, its batches are copied unchanged. Raises
    LogFormatError where a log in magic 2 grows beyond it, and for damage, as a reader does; the written file is then
    invalid.
    """
    path, size = segment.path, segment.size_bytes
    reader, log = LogReader(settings.chunk_bytes, settings.max_batch_bytes), log_file(source, path, size)
    converter = Converter(settings.magic, max_batch_bytes=settings.max_batch_bytes)
    indexes = settings.index_builder(segment.base_offset, to)
    room = limit - limit // _SPARE
    read = written = batches = changed = total = 0
    with open_output(target, to) as out:
        for chunk in reader.chunks(log):
            read = crc32c_extend(read, chunk.raw)
            for part in converter.convert(chunk):
                rows = chunk.batches[part.first : part.first + len(part.sizes)]
                end = int(rows["position"][-1] + rows["size"][-1])
                if settings.magic == 3 and room < total + len(part.data) + size - end:
                    part = _unchanged(part, chunk, rows)  # noqa: PLW2901
                total += len(part.data)
                if total > limit:
                    raise LogFormatError(
                        "length",
                        path,
                        chunk.position,
                        f"a log of at most {limit} bytes in magic {settings.magic}",
                        "more",
                        hint="its records take more room there: keep this log in magic 3, or the original",
                    )
                indexes.append(rows["last_offset"], part.sizes, rows["max_timestamp"])
                out.write(part.data.data)
                written = crc32c_extend(written, part.data)
                batches += len(rows)
                changed += int(part.changed.sum())
        with log.open() if reader.tail.torn_bytes else nullcontext() as file:
            for at in range(reader.tail.position, size, _PIECE):  # a torn batch, or zeros
                piece = np.empty(min(_PIECE, size - at), np.uint8)
                read_exactly(file, path, at, piece)
                out.write(piece.data)
                read, written, total = crc32c_extend(read, piece), crc32c_extend(written, piece), total + len(piece)
    return ConvertedLog(total, batches, changed, read, written, *indexes.finish())


def _unchanged(part: Converted, chunk: Chunk, rows: np.ndarray) -> Converted:
    start = int(rows["position"][0]) - chunk.position
    sizes = rows["size"].astype(np.int64)
    return Converted(chunk.raw[start : start + int(sizes.sum())], sizes, np.zeros(len(rows), np.bool_), part.first)


def holds_magic_3(root: Root, path: str, size: int) -> bool:
    """Return whether some batch has magic 3, by the headers alone. Damage ends the walk; a reader of the log reports
    the damage.
    """
    try:
        return any((chunk.batches["magic"] == 3).any() for chunk in LogReader().headers(log_file(root, path, size)))
    except LogFormatError:
        return False


@dataclass(frozen=True)
class SmallFile:
    """A small file to copy."""

    root: str  # URI
    path: str  # below the root
    to: str  # below the task's folder


@dataclass(frozen=True)
class ConvertTask:
    """Consecutive segments of one partition, and small files to copy."""

    output_uri: str
    folder: str  # folder of the partition, below the output
    segments: tuple[Segment, ...]
    copies: tuple[SmallFile, ...]
    settings: ConvertSettings


@dataclass(frozen=True)
class ConvertedSegments:
    """Sums over a task, and its problems."""

    segments: int
    kept: int  # segments that an earlier run has converted; their batches are not counted
    batches: int
    changed: int
    bytes_before: int
    bytes_after: int
    problems: tuple[Problem, ...]
    seconds: float


def convert_segments(task: ConvertTask) -> ConvertedSegments:
    """Convert and copy. Raises OSError for a full disk."""
    started = time.perf_counter()
    output = make_folder(open_root(task.output_uri), task.folder)
    whole = whole_segments(output, task.folder) if task.segments else {}
    kept = [segment for segment in task.segments if segment.base_offset in whole]
    done: list[tuple[Segment, ConvertedLog]] = []
    problems: list[Problem] = []
    for segment in task.segments:
        if segment.base_offset in whole:
            continue
        outcome = attempt(segment.path, lambda s=segment: _convert(s, output, task))  # type: ignore[misc]
        if isinstance(outcome, Problem):
            problems.append(outcome)
            _remove(output, being_written(output, _path(task, segment, names.LOG)))
        else:
            done.append((segment, outcome))
    for copy in task.copies:
        copied = attempt(copy.path, lambda c=copy: _copy(c, output, task.folder))  # type: ignore[misc]
        problems += [copied] if isinstance(copied, Problem) else []
    if output.is_local:
        flush_folder(output, task.folder)
    return ConvertedSegments(
        len(done) + len(kept),
        len(kept),
        sum(outcome.batches for _, outcome in done),
        sum(outcome.changed for _, outcome in done),
        sum(segment.size_bytes for segment in (*kept, *(segment for segment, _ in done))),
        sum(outcome.size for _, outcome in done) + sum(whole[segment.base_offset] for segment in kept),
        tuple(problems),
        time.perf_counter() - started,
    )


def _path(task: ConvertTask, segment: Segment, kind: str) -> str:
    return f"{task.folder}/{names.segment_file(segment.base_offset, kind)}"


def _convert(segment: Segment, output: Root, task: ConvertTask) -> ConvertedLog:
    root, to = open_root(segment.root), being_written(output, _path(task, segment, names.LOG))
    converted = convert_log(segment, root, output, to, task.settings)
    check_written(output, to, converted.size, converted.checksum)
    mtime_ns = segment.mtime_ms * 1_000_000
    set_time(output, to, mtime_ns)
    flush(output, to)
    for kind, data in ((names.INDEX, converted.offset_index), (names.TIME_INDEX, converted.time_index)):
        path = being_written(output, _path(task, segment, kind))
        write_file(output, path, data)
        set_time(output, path, mtime_ns)
    for kind in (names.LOG, names.INDEX, names.TIME_INDEX):
        give_name(output, _path(task, segment, kind))
    return converted


def _copy(copy: SmallFile, output: Root, folder: str) -> None:
    source, to = open_root(copy.root), f"{folder}/{copy.to}" if folder else copy.to
    make_folder(output, to.rpartition("/")[0])
    with opened(source, copy.path) as file:
        write_file(output, to, file.read())
    mtime_ns = source.filesystem.get_file_info(source.full(copy.path)).mtime_ns
    if mtime_ns is not None:
        set_time(output, to, mtime_ns)


def _remove(root: Root, path: str) -> None:
    with suppress(OSError):
        root.filesystem.delete_file(root.full(path))


def sums(parts: Sequence[ConvertedSegments]) -> dict[str, int]:
    """Return the sums of several tasks' counts."""
    named = ("segments", "kept", "batches", "changed", "bytes_before", "bytes_after")
    return {name: sum(getattr(part, name) for part in parts) for name in named}


MARK = f"convert{names.PART}"
_KINDS = (names.LOG, names.INDEX, names.TIME_INDEX)


def mark(output: Root, content: str) -> bool:
    """Note in a folder what is converted, and return True; False if it is marked with anything else.

    A mark that is a prefix of this one comes from a run that was killed while it wrote the mark, before any other file.
    The mark file is deleted and written again, because it may be a hard link to another file.
    """
    found = read_file(output, MARK) if (is_marked := exists(output, MARK)) else b""
    if found == content.encode() or not content.encode().startswith(found):
        return found == content.encode()
    if is_marked:
        unmark(output)
    write_file(output, MARK, content.encode())
    if output.is_local:
        flush(output, "")
    return True


def unmark(output: Root) -> None:
    """Note that all is there."""
    output.filesystem.delete_file(output.full(MARK))


def whole_segments(output: Root, folder: str) -> dict[int, int]:
    """Return base offset -> bytes of the log of each segment that is whole."""
    found = output.filesystem.get_file_info(pafs.FileSelector(output.full(folder), allow_not_found=True))
    sizes = {info.base_name: int(info.size) for info in found if info.type == pafs.FileType.File}
    parsed = ((names.parse_segment_file(name), size) for name, size in sizes.items())
    return {
        file.base: size
        for file, size in parsed
        if file is not None
        and file.kind == names.LOG
        and all(names.segment_file(file.base, kind) in sizes for kind in _KINDS)
    }


def open_folder(output: Root, folder: str, bases: Iterable[int]) -> str | None:
    """Return the folder to write a partition's segments to; None if it is complete and has all of them.

    A whole folder lacks a segment whose log could not be read. It is opened again, to read that log once more.
    """
    part = f"{folder}{names.PART}"
    if exists(output, folder) and not exists(output, part):
        if set(bases) <= whole_segments(output, folder).keys():
            return None
        if output.is_local:
            os.rename(output.full(folder), output.full(part))  # noqa: PTH104 - as all of this module, by whole paths
    if output.is_local:
        return part
    write_file(output, part, b"")
    return folder


def close_folder(output: Root, folder: str) -> None:
    """Give a partition's folder, in which all is flushed, its own name."""
    part = f"{folder}{names.PART}"
    if not output.is_local:
        output.filesystem.delete_file(output.full(part))
        return
    flush(output, part)
    os.rename(output.full(part), output.full(folder))  # noqa: PTH104 - as above
    flush_folder(output, folder.rpartition("/")[0])


def being_written(output: Root, path: str) -> str:
    """Return the name that a file has until `give_name`."""
    return f"{path}{names.PART}" if output.is_local else path


def give_name(output: Root, path: str) -> None:
    """Give a file that is flushed its own name."""
    if output.is_local:
        os.replace(output.full(being_written(output, path)), output.full(path))  # noqa: PTH105 - as above
