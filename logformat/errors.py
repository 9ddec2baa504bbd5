"""What can be wrong with a log file. One root, so that a caller can set a partition aside on any of them.

`stopped` is the one place that decides what an exception costs: the work that it stopped, or the whole job.
"""

from __future__ import annotations

import errno
import logging
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from logformat.s3_access import AccessError, access_error

_LOG = logging.getLogger(__name__)


class LogFormatError(Exception):
    """A file that is not what Kafka would have written.

    `kind` is one of KINDS; `position` is the byte in the file, `base_offset` the batch's base offset (-1: not known).
    """

    def __init__(
        self, kind: str, path: str, position: int, expected: str, found: str, *, base_offset: int = -1, hint: str = ""
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"no such kind of problem: {kind}")
        self.kind, self.path, self.position, self.base_offset = kind, path, position, base_offset
        self.expected, self.found, self.hint = expected, found, hint
        super().__init__(kind, path, position, expected, found)

    def __str__(self) -> str:
        at = f"{self.path} at byte {self.position}"
        if self.base_offset >= 0:
            at = f"{at} (batch at offset {self.base_offset})"
        hint = f"; {self.hint}" if self.hint else ""
        return f"{at}: {self.kind}: expected {self.expected}, found {self.found}{hint}"

    def __reduce__(self) -> tuple[object, ...]:  # crosses process borders with every field
        return _rebuild, (
            self.kind, self.path, self.position, self.expected, self.found, self.base_offset, self.hint,
        )  # fmt: skip


def _rebuild(
    kind: str, path: str, position: int, expected: str, found: str, base_offset: int, hint: str
) -> LogFormatError:
    return LogFormatError(kind, path, position, expected, found, base_offset=base_offset, hint=hint)


def unreadable(path: str, error: OSError, position: int = 0) -> LogFormatError:
    """What stands for an operating-system error while a file is opened or read. AccessError: it is not the file's."""
    raise_access(error)
    return LogFormatError("unreadable", path, position, "a readable file", _said(error))


@contextmanager
def readable(path: str, position: int = 0) -> Iterator[None]:
    """For what only reads a file: an OSError inside the block is raised as `unreadable`."""
    try:
        yield
    except OSError as error:
        raise unreadable(path, error, position) from error


@contextmanager
def unless_unreadable() -> Iterator[None]:
    """For a side file from which something is derived that stays: contents that are damaged count as none, but a file
    that cannot be read raises. It may be read tomorrow, and what was made without it would stay as it is.
    """
    try:
        yield
    except LogFormatError as error:
        if error.kind == "unreadable":
            raise


def is_full(error: BaseException) -> bool:
    """Whether an error says that a disk, or a quota, is full: no file's fault, and all that write meet it."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


_WRITES = re.compile(r"during (?:Put|\w*Upload)\w* operation")  # of S3


def raise_access(error: OSError) -> None:
    """AccessError where an error says that a bucket as a whole cannot be used: all that read and write meet it. Where
    a write is refused, all are.
    """
    reads = _WRITES.search(str(error)) is None
    if error.errno is None and (found := access_error(str(error), of_one_file=reads)) is not None:
        raise found from error


def stopped(error: Exception, name: str) -> LogFormatError:
    """What stands for an exception that stopped the work on one thing: a partition, a segment or a file of this name.

    LogFormatError: itself. An OSError, since all that read make LogFormatError of theirs: "unwritable". MemoryError:
    "memory", for hostile bytes may want any amount, and what they took is free again. Any other: "defect", with the
    traceback in the log. A full disk, AccessError and UnsafeFolderError are raised again: they are the machine's.
    KeyboardInterrupt, SystemExit and their like are no Exception, and never come here.
    """
    if isinstance(error, LogFormatError):
        return error
    if is_full(error) or isinstance(error, UnsafeFolderError | AccessError):
        raise error
    if isinstance(error, OSError):
        raise_access(error)
    out = _stopped(error, name)
    out.__cause__ = error
    return out


def without_frames(error: LogFormatError) -> LogFormatError:
    """An error that is to be kept, without the frames that it came through: they would keep their buffers."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def _stopped(error: Exception, name: str) -> LogFormatError:
    if isinstance(error, OSError):
        return LogFormatError("unwritable", str(error.filename or name), 0, "a file that can be written", _said(error))
    if isinstance(error, MemoryError):
        return LogFormatError(
            "memory",
            name,
            0,
            "memory enough for this work",
            str(error) or "none left",
            hint="more memory, or lower chunk.bytes and max.decompressed.batch.bytes",
        )
    _LOG.error("%s: unexpected, please report this:", name, exc_info=error)
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" in {frame.name}, line {frame.lineno} of {frame.filename.rpartition('/')[2]}" for frame in last)
    return LogFormatError(
        "defect",
        name,
        0,
        "work that comes to its end",
        f"{type(error).__name__}: {error}{where}",
        hint="please report this with the traceback in the log; nothing of it was used",
    )


def _said(error: OSError) -> str:
    """Type, errno and text; of Arrow's, which say all twice, the last."""
    return f"{type(error).__name__}: {str(error).rpartition('Detail:')[2].strip()}"


class UnsafeFolderError(Exception):
    """A folder for compiled kernels, named by the user, in which others could put code that would run as the user."""

    def __init__(self, path: str, found: str) -> None:
        self.path, self.found = path, found
        super().__init__(path, found)

    def __str__(self) -> str:
        return (
            f"NUMBA_CACHE_DIR={self.path}: expected a folder that nobody else can write, found that {self.found}; what "
            "lies there is run as code: name a folder of your own (mode 0700), or unset the variable"
        )


# kind -> what it says of the file
KINDS = {
    "length": "a size field that cannot be, or runs past the end of the file",
    "torn_tail": "the file ends inside a batch",
    "magic": "a magic byte outside 0..2",
    "crc": "the checksum does not fit the bytes",
    "codec": "a compression codec that is unknown, or illegal in this format",
    "compressed": "a compressed body that cannot be decompressed",
    "bomb": "a batch that is, or that decompresses to, more than the limit",
    "varint": "a varint that is longer than its type",
    "record": "a record whose fields do not fill its length",
    "count": "a batch that holds more or fewer records than its header says",
    "offsets": "offsets that do not rise, or lie outside the batch or the segment",
    "relative_offset": "an offset too far from the segment's base for an index entry",
    "name": "a file name that contradicts the content",
    "overlap": "two segments that hold the same offsets",
    "duplicate": "the same partition in two places",
    "gap": "offsets that are missing between two files",
    "index": "an index file that is torn or contradicts its log",
    "side_file": "a snapshot, checkpoint or metadata file that cannot be parsed",
    "unreadable": "a file that cannot be opened or read",
    "changed": "a file that shrank or changed while it was read",
    "huge": "records that are too large to be shown",
    "keys": "more keys than a task may hold",
    "null_key": "records without a key in a partition that is to be compacted",
    "version": "no record has the header that compaction.strategy.header names",
    "transaction": "control records that cannot be",
    "readback": "a written file that is not what was meant to be written",
    "unwritable": "a file that cannot be written; a full disk is no such problem, it ends the job",
    "memory": "more memory was wanted than there is",
    "defect": "not the file: an error of this program, which should be reported",
}
