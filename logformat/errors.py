"""Errors of log files, with one root, so that a caller can catch any of them as a problem of the partition.

Only `stopped` decides whether an exception ends the work on one partition or file, or the whole job.
"""

from __future__ import annotations

import difflib
import errno
import logging
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

NO_POSITION: Final = -1  # position in an error about a partition or a folder
_LOG = logging.getLogger(__name__)


class LogFormatError(Exception):
    """A file that Kafka would not have written like this.

    `kind` is one of KINDS; `position` is a byte in the file, or NO_POSITION; `base_offset` is the batch's (-1:
    unknown); `state` is that of the partition in `cleaner_state`: uncleanable, diverged or gap.
    """

    def __init__(
        self,
        kind: str,
        path: str,
        position: int,
        expected: str,
        found: str,
        *,
        base_offset: int = -1,
        hint: str = "",
        state: str = "uncleanable",
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"no such kind of problem: {kind}")
        self.kind, self.path, self.position, self.base_offset = kind, path, position, base_offset
        self.expected, self.found, self.hint, self.state = expected, found, hint, state
        super().__init__(kind, path, position, expected, found)

    def __str__(self) -> str:
        at = self.path if self.position == NO_POSITION else f"{self.path} at byte {self.position}"
        if self.base_offset >= 0:
            at = f"{at} (batch at offset {self.base_offset})"
        hint = f"; {self.hint}" if self.hint else ""
        if self.kind == "defect":
            return f"{at}: internal error: {self.found}{hint}"
        return f"{at}: {self.kind}: expected {self.expected}, found {self.found}{hint}"

    def __reduce__(self) -> tuple[object, ...]:  # pickled with every field, for other processes
        again = partial(LogFormatError, base_offset=self.base_offset, hint=self.hint, state=self.state)
        return again, (self.kind, self.path, self.position, self.expected, self.found)


def batch_error(kind: str, path: str, batch: Any, expected: str, found: str, *, hint: str = "") -> LogFormatError:
    """Return the LogFormatError for a batch, a layout.BATCH row: its position is where the batch begins."""
    base = int(batch["base_offset"])
    return LogFormatError(kind, path, int(batch["position"]), expected, found, base_offset=base, hint=hint)


def unreadable(path: str, error: OSError, position: int = 0) -> LogFormatError:
    """Return the LogFormatError for an operating-system error of opening or reading a file. Raise AccessError again."""
    if isinstance(error, AccessError):
        raise error
    return LogFormatError("unreadable", path, position, "a readable file", _describe(error))


@contextmanager
def readable(path: str, position: int = 0) -> Iterator[None]:
    """Raise an OSError of the block as LogFormatError kind "unreadable". The block must only read."""
    try:
        yield
    except OSError as error:
        raise unreadable(path, error, position) from error


@contextmanager
def unless_unreadable() -> Iterator[None]:
    """Ignore a damaged side file in the block, but raise LogFormatError for an unreadable one.

    Use it where the result is stored: an unreadable file may become readable later, but the stored result would lack
    its facts.
    """
    try:
        yield
    except LogFormatError as error:
        if error.kind == "unreadable":
            raise


def is_full(error: BaseException) -> bool:
    """Return whether an error means that a disk or a quota is full. No file is at fault then: every write fails."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def stopped(error: Exception, name: str) -> LogFormatError:
    """Return the LogFormatError for an exception that stopped the work on one partition, segment or file, called
    `name`.

    - A LogFormatError is returned itself.
    - An OSError becomes "unwritable", because every reader turns its own OSErrors into LogFormatErrors before.
    - A MemoryError becomes "memory": hostile bytes may ask for any amount, and the memory is free again.
    - Any other exception becomes "defect"; its traceback is written to the log.

    Raise a full disk, AccessError and PlaceError again, because they concern the whole machine.
    KeyboardInterrupt and SystemExit never come here, because they are no Exception.
    """
    if isinstance(error, LogFormatError):
        return error
    if is_full(error) or isinstance(error, PlaceError | AccessError):
        raise error
    out = _stopped(error, name)
    out.__cause__ = error
    return out


def without_frames(error: LogFormatError) -> LogFormatError:
    """Return an error without its traceback and causes, whose frames would keep their buffers alive."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def _stopped(error: Exception, name: str) -> LogFormatError:
    if isinstance(error, OSError):
        path, position = (str(error.filename), 0) if error.filename else (name, NO_POSITION)
        return LogFormatError("unwritable", path, position, "a file that can be written", _describe(error))
    if isinstance(error, MemoryError):
        expected, found = "enough memory for this work", str(error) or "none left"
        hint = "give it more memory, or lower chunk.bytes and max.decompressed.batch.bytes"
        return LogFormatError("memory", name, NO_POSITION, expected, found, hint=hint)
    _LOG.error("%s: unexpected, please report this:", name, exc_info=error)
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" in {frame.name}, line {frame.lineno} of {frame.filename.rpartition('/')[2]}" for frame in last)
    found = f"{type(error).__name__}: {error}{where}"
    hint = "please report this with the traceback in the log; its output was not used"
    return LogFormatError("defect", name, NO_POSITION, "no internal error", found, hint=hint)


def _describe(error: OSError) -> str:
    """Return type, errno and text of an error; Arrow repeats the text, so only its last part."""
    return f"{type(error).__name__}: {str(error).rpartition('Detail:')[2].strip()}"


class PlaceError(ValueError):
    """A URI or folder of the user that is refused: malformed, with credentials, or unsafe."""


class AccessError(OSError):
    """A bucket that cannot be used at present for any file. No file is at fault.

    It is an OSError, so what ignores a failed request ignores it too; `unreadable` and `stopped` raise it again.

    kind: words of `storage.access_error`; where: bucket and endpoint; found: the words of the server or the library.
    """

    def __init__(self, kind: str, where: str, found: str) -> None:
        self.kind, self.where, self.found = kind, where, found
        super().__init__(f"{where}: {kind}: {found}")

    def __reduce__(self) -> tuple[object, ...]:
        return AccessError, (self.kind, self.where, self.found)


def unknown_name(what: str, name: str, known: Iterable[str]) -> ValueError:
    """Return the error for a name that is none of `known`, with the nearest of them."""
    near = difflib.get_close_matches(name, names := list(known))
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names)}"
    return ValueError(f"no such {what}: {name!r}; {hint}")


CHANGED_HINT: Final = "something writes to this file, or the disk is faulty: find out which, then run again"


# kind -> its meaning
KINDS = {
    "length": "a size field that is impossible, or runs past the end of the file",
    "torn_tail": "the file ends inside a batch",
    "magic": "a magic byte outside 0..3",
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
    "no_generation": "a partition that the archive has, and of which the store has no generation",
    "index": "an index file that is torn or contradicts its log",
    "side_file": "a snapshot, checkpoint or metadata file that cannot be parsed",
    "unreadable": "a file that cannot be opened or read",
    "changed": "a file that shrank or changed while it was read",
    "huge": "records that are too large to be shown",
    "keys": "more keys than a task may hold",
    "null_key": "records without a key in a partition that is to be compacted",
    "version": "no record has the header that compaction.strategy.header names",
    "transaction": "control records that are malformed or contradict the log",
    "readback": "a written file that does not read back as written",
    "erased": "records that were erased would be read again, and the key is not given that tells which",
    "unwritable": "a file that cannot be written; a full disk ends the job instead",
    "memory": "not enough memory",
    "defect": "not the file: an error of this program, which should be reported",
}
