"""What becomes of an error: a line for a person, fields for a program, an exit code."""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jobs.command.access import job_error
from jobs.command.reporting import size
from jobs.command.spark_options import OF_SPARK
from jobs.command.typed import nearest
from jobs.errors import UNEXPECTED, USAGE, DiskFullError, FileSystemError, JobError, JvmEndedError, WorkerEndedError
from logformat.errors import UnsafeFolderError

_PATIENCE_SECONDS: Final = 10.0  # for a JVM to end after the connection to it broke
_OF_THE_MACHINE: Final = {
    errno.EIO, errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ENODEV,
    errno.ENXIO, errno.ENOLCK, errno.ENOTCONN, errno.EREMOTEIO, errno.EFBIG, errno.EMLINK, errno.EEXIST, errno.ENOTDIR,
}  # fmt: skip
_NUMBER: Final = re.compile(r"\(os error (\d+)\)|\[[Ee]rrno (\d+)\]")  # as Rust and Arrow write it
# All that Arrow says of a local file without a number, with every operation below it failing in turn
_WITHOUT_NUMBER: Final = re.compile(r"error closing file|Memory mapping file failed")
_NAMED: Final = re.compile(r"(?:file://)?(/[^\n'\":]+)")


class TerminatedError(BaseException):
    """SIGTERM: unwinds like Ctrl-C, so that locks and sessions are given back."""


@dataclass(frozen=True)
class Ending:
    """How a command ends that failed."""

    line: str
    fields: dict[str, object]
    exit_code: int
    is_defect: bool = False  # of ours: a traceback comes before it


@contextmanager
def writing() -> Iterator[None]:
    """While something is written to stdout: that it takes no more, but for a pipe that was closed, is said of stdout
    and of no disk; and what it still holds is nobody's.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise FileSystemError(path="stdout", found=error.strerror or str(error)) from error


def written(call: Callable[..., object]) -> Callable[..., object]:
    """A method of stdout's that writes, as in `writing`."""

    def guarded(*given: Any) -> object:
        with writing():
            return call(*given)

    return guarded


def of_job_error(error: JobError) -> Ending:
    """What a job raises on purpose."""
    return Ending(error.line(), error.to_json(), error.exit_code)


def of_usage(message: str, more: str = "") -> Ending:
    """What cannot be, as it was typed; `more`: for people alone."""
    return Ending(message + more, _plain("UsageError", message, USAGE), USAGE)


def misplaced(option: str, of_jobs: Iterable[str], job: str | None, program: str) -> str:
    """What to say of an option that is wrong behind a job's name, or (job None) before any. "": nothing more.

    Options of Spark stand before the job's name, those of a job behind it.
    """
    if job is not None:
        where = f"it goes before the job's name ({program} {option} ... {job} ...)"
        return f"{option} is an option of Spark: {where}" if option in OF_SPARK else ""
    if option in of_jobs:
        return f"{option} is an option of a job: it goes behind the job's name ({program} JOB {option} ...)"
    known = nearest(option, [*sorted(OF_SPARK), "--help", "--version"])
    return f"unknown option before the job's name: {option}{known}"


def of_interruption(error: BaseException) -> Ending:
    """Ctrl-C, or SIGTERM."""
    kind, said, code = "Interrupted", "interrupted", 130
    if isinstance(error, TerminatedError):
        kind, said, code = "Terminated", "terminated", 143
    message = "; ".join((said, *getattr(error, "__notes__", ()), "what was committed stays; run again to continue"))
    return Ending(message, _plain(kind, message, code), code)


def of_other(error: Exception, arguments: Sequence[str] = ()) -> Ending:
    """Whatever else: a full disk, a JVM that is gone, the signal that it comes from, or a defect.

    arguments: the command's, which say where it writes to.
    """
    asked = None if isinstance(error, OSError) else _asked_to_end(error)
    if asked is not None:
        return of_interruption(asked)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        full = _full_disk(error.filename, error.strerror or "disk full", arguments)
        for note in getattr(error, "__notes__", ()):
            full.add_note(note)
        return of_job_error(full)
    text = f"{type(error).__name__}: {error}"
    if "No space left on device" in text:  # from the JVM, or a worker, as text
        named = re.search(r"No space left on device[^/\n]{0,20}?(/[^\n'\"]+)", text)
        return of_job_error(_full_disk(named[1] if named else None, "No space left on device", arguments))
    if (refused := job_error(error)) is not None:
        for note in getattr(error, "__notes__", ()):
            refused.add_note(note)
        return of_job_error(refused)
    ended = _how_the_jvm_ended(error, text)
    if ended is not None:
        return of_job_error(JvmEndedError(found=ended))
    if crashed := re.search(r"Python worker exited unexpectedly \(crashed\)", text):
        return of_job_error(WorkerEndedError(found=crashed[0]))
    unsafe = re.search(rf"{UnsafeFolderError.__name__}: (.*)", text)
    if unsafe:  # that executors were told to use
        return of_usage(unsafe[1])
    if (failed := _of_the_file_system(error, text)) is not None:
        for note in getattr(error, "__notes__", ()):
            failed.add_note(note)
        return of_job_error(failed)
    message = f"unexpected: {text.splitlines()[0]}; please report this with the lines above"
    return Ending(message, _plain(type(error).__name__, text, UNEXPECTED), UNEXPECTED, is_defect=True)


def _of_the_file_system(error: Exception, text: str) -> FileSystemError | None:
    """What the machine's file system refused; None: something else. Arrow and delta-rs say it in text alone."""
    number = error.errno if isinstance(error, OSError) else None
    first = text.splitlines()[0]
    if number is None and (told := _NUMBER.search(text)):
        number = int(told[1] or told[2])
    unnamed = type(error) is OSError and number is None and _WITHOUT_NUMBER.match(str(error)) is not None
    if number not in _OF_THE_MACHINE and not unnamed:
        return None
    if isinstance(error, OSError) and error.filename is not None:
        return FileSystemError(path=os.fsdecode(error.filename), found=error.strerror)
    named = _NAMED.search(first)
    return FileSystemError(path=named[1] if named else "a file", found=first)


def _full_disk(named: object, found: str, arguments: Sequence[str]) -> DiskFullError:
    """With the free space of the disk that a path lies on; if none is named, of the fullest that is written to."""
    words = [part for argument in arguments for part in argument.split("=", 1)]
    places = [after for before, after in itertools.pairwise(words) if before in ("--store", "--output")]
    session = sys.modules.get("jobs.spark.session")
    places += [*(session.local_folders() if session is not None else ()), tempfile.gettempdir()]
    local = [place for place in places if "://" not in place]
    path = os.fsdecode(named) if isinstance(named, str | bytes) else min(local, key=_free_bytes)
    left = f"{size(_free_bytes(path))} free" if _has_inodes(path) else "no inode free"
    return DiskFullError(path=path, found=f"{found}, {left}")


def _free_bytes(path: str) -> int:
    """Of the disk on which a path lies, or would lie."""
    return shutil.disk_usage(_there(path)).free


def _has_inodes(path: str) -> bool:
    """Whether a file can be made there; some file systems do not count them."""
    found = os.statvfs(_there(path))
    return found.f_favail > 0 or found.f_files == 0


def _there(path: str) -> Path:
    there = Path(path).absolute()
    while not there.exists() and there != there.parent:
        there = there.parent
    return there


def _asked_to_end(error: BaseException) -> BaseException | None:
    """The signal behind an error: Spark says of the jobs that it cancels only that they failed."""
    before: BaseException | None = error
    while before is not None and not isinstance(before, KeyboardInterrupt | TerminatedError):
        before = before.__context__
    return before


def _how_the_jvm_ended(error: Exception, text: str) -> str | None:
    """None: it did not. Python hears of its end first as a connection that broke."""
    session = sys.modules.get("jobs.spark.session")
    if session is None:
        return None
    lost = isinstance(error, ConnectionError | EOFError) or type(error).__name__ in ("Py4JError", "Py4JNetworkError")
    full = re.search(r"java\.lang\.OutOfMemoryError[^\n]*", text)
    ended: str | None = session.how_the_jvm_ended(_PATIENCE_SECONDS if lost else 0)
    return full[0] if full else ended


def _plain(kind: str, message: str, code: int) -> dict[str, object]:
    nothing = dict.fromkeys(("path", "position", "expected", "found"))
    return {"kind": kind, "exit_code": code, "message": message, "hint": "", **nothing}
