"""Failures of commands: an error becomes a line for a person, fields for a program, and an exit code."""

from __future__ import annotations

import errno
import functools
import inspect
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
from typing import Final, ParamSpec, TypeVar, get_args

from lastkey.jobs import errors
from lastkey.jobs.command.option_groups import RecordKind
from lastkey.jobs.command.parse import nearest
from lastkey.jobs.command.reporting import JobReport, size
from lastkey.jobs.command.spark_options import OF_SPARK
from lastkey.jobs.command.stopping import EarlyEndError, InterruptedRunError
from lastkey.jobs.errors import (
    DISK_FULL,
    JVM_ENDED,
    NO_DRIVER_PACKAGE,
    PROCESS_LIMIT,
    SPARK_ENDED,
    SPARK_LIMIT,
    UNEXPECTED,
    USAGE,
    WORKER_ENDED,
    WORKER_SETUP,
    FileSystemError,
    JobError,
    Kind,
    MachineError,
    UnknownNameError,
    UsageError,
)
from lastkey.jobs.installation import OF_DRIVERS
from lastkey.logformat.errors import AccessError, PlaceError, is_full
from lastkey.logformat.storage import access_error as kinds
from lastkey.logformat.storage.access_error import classify_message, in_one_line

P = ParamSpec("P")
R = TypeVar("R")

_STOP_SECONDS: Final = 1.0  # for a JVM to end after its context: one that exits stops that first
_OF_THE_MACHINE: Final = {
    errno.EIO, errno.EACCES, errno.EPERM, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ENODEV,
    errno.ENXIO, errno.ENOLCK, errno.ENOTCONN, errno.EREMOTEIO, errno.EFBIG, errno.EMLINK, errno.EEXIST, errno.ENOTDIR,
    errno.ENAMETOOLONG, errno.ELOOP,
}  # fmt: skip
# A line with an error's number, as Rust and Arrow write it; a task's error has it below Spark's own line
_NUMBERED_LINE: Final = re.compile(r"^.*?(?:\(os error (\d+)\)|\[[Ee]rrno (\d+)\]).*$", re.MULTILINE)
# Arrow's messages about local files that have no number, found by failing each operation below it in turn
_WITHOUT_NUMBER: Final = re.compile(r"error closing file|Memory mapping file failed")
# Spark's texts of a failed task if its Python lacks a package, is missing, has another version, or fails to start
_LACKS: Final = re.compile(r"ModuleNotFoundError: No module named '[^']+'")
_SETUP: Final = re.compile(
    r"Cannot run program \"[^\"]*\"[^\n]*"
    r"|\[PYTHON_VERSION_MISMATCH\][^\n]*|Error from python worker:\n.*?(?=\s*\nPYTHONPATH was:)",
    re.DOTALL,
)
# Spark's texts of a context that it ended by itself: of the job that was cut off, and of later calls
_STOPPED: Final = re.compile(r"SparkContext was shut down|Cannot call methods on a stopped SparkContext")
# Texts of a Python worker that ended: while it worked, with its executor, before it sent its process id, or with the
# daemon that forks it
_LOST: Final = re.compile(
    r"Python worker exited unexpectedly \(crashed\)|ExecutorLostFailure \((?:(?! Diagnostics:)[^\n])*"
    r"|java\.io\.EOFException(?=\n\tat [^\n]*\n\tat org\.apache\.spark\.api\.python\.PythonWorkerFactory)"
    r"|java\.(?:net\.Socket|io\.IO)Exception: (?:Connection reset|Broken pipe)[^\n]*"
    r"(?=(?:\n\tat [^\n]*){1,20}?\n\tat org\.apache\.spark\.api\.python\.)"
    r"|EOFException occurred while reading the port number from [^\n]*(?=\.\n)"
)
_FULL: Final = "No space left on device"
_NO_THREAD: Final = "can't start new thread"  # Python's words
# Options that were, or that Kafka's tools have, and what to give instead
INSTEAD: Final = {
    "--deep-iteration": "--print records", "--filter": "--key KEY", "--files": "the files as arguments",
    "--from": "the files as arguments", "--gaps": "--set gaps=accept", "--index-sanity-check": "--print mismatches",
    "--keep-daily": "--keep Nd", "--keep-generations": "--keep N", "--keep-weekly": "--keep Nw",
    "--max-bytes": "--offset ..TO", "--max-bytes-per-second": "--set max.bytes.per.second=N",
    "--min-yield": "--set compaction.min.yield=SHARE", "--most": "a query of the tables audit_*",
    "--null-keys": "--set null.keys=keep or drop", "--offsets": "--offset", "--partitions": "--partition",
    "--paths": "--format paths", "--plan": "--output FILE", "--print-data-log": "--print data",
    "--skip-record-metadata": "--print values", "--times": "--time", "--until": "--at FROM..TO",
    "--verify-index-only": "--print mismatches",
    **{f"--{kind}-decoder": f"--decoder {kind}" for kind in get_args(RecordKind) if not kind.startswith("mirror-")},
}  # fmt: skip
_KINDS: Final[dict[str, Kind[JobError]]] = {
    kinds.UNAVAILABLE: errors.UNAVAILABLE,
    kinds.NO_BUCKET: errors.MISSING_BUCKET,
    kinds.DENIED: errors.DENIED,
    kinds.EXPIRED: errors.EXPIRED,
}
_IN_TEXT: Final = re.compile(rf"{AccessError.__name__}: ((?:s3|gs|az)://.*?): ({'|'.join(_KINDS)}): (.*)")
_URL: Final = re.compile(r"https?://[^\s?]+")
_WRITTEN_TO: Final = ("--store", "--output")
_NAMED: Final = re.compile(r"(?:file://)?((?:(?:s3|gs|az):/)?/[^\n'\":]+)")


@dataclass(frozen=True)
class Failure:
    """Failure of a command: its message, fields and exit code."""

    line: str
    fields: dict[str, object]
    exit_code: int
    is_defect: bool = False  # ours: print a traceback first
    report: JobReport | None = None  # report of the work that was done before the failure

    def to_json(self) -> dict[str, object]:
        """Return the error as JSON, in the report if there is one."""
        done = self.report.to_json() | {"exit_code": self.exit_code} if self.report is not None else {}
        return done | {"error": self.fields}


@contextmanager
def writing() -> Iterator[None]:
    """Blame stdout, not a disk, for write errors, except for a closed pipe; drop what stdout still buffers."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise FileSystemError(path="stdout", found=error.strerror or str(error)) from error


def job_error_failure(error: JobError) -> Failure:
    """Return the failure for an error that a job raises on purpose."""
    return Failure(error.line(), error.to_json(), error.exit_code)


def usage_failure(message: str, more: str = "") -> Failure:
    """Return the failure for wrong usage; `more`: a hint for people alone."""
    return Failure(message + more, _plain("UsageError", message, USAGE), USAGE)


def misplaced(option: str, of_jobs: Iterable[str], job: str | None, program: str) -> JobError | None:
    """Return the error for an option in the wrong place: after a job's name, or before any (job None). Return None for
    an unknown option after a job's name.

    Options of Spark go before the job's name, those of a job after it.
    """
    if job is not None and option in INSTEAD and (option not in OF_SPARK or job == "inspect"):
        return UsageError(message=f"{job} has no option {option}: give {INSTEAD[option]}")
    if job is not None:
        where = f"it goes before the job's name ({program} {option} ... {job} ...)"
        return UsageError(message=f"{option} is an option of Spark: {where}") if option in OF_SPARK else None
    if option in of_jobs:
        where = f"it goes after the job's name ({program} JOB {option} ...)"
        return UsageError(message=f"{option} is an option of a job: {where}")
    near = nearest(option, [*sorted(OF_SPARK), "--help", "--version"])
    return UnknownNameError(message=f"unknown option before the job's name: {option}", near=near)


def interruption_failure(error: BaseException) -> Failure:
    """Return the failure for Ctrl-C or SIGTERM. The job's notes name what it leaves, if anything."""
    kind = error if isinstance(error, EarlyEndError) else InterruptedRunError()
    message = "; ".join((kind.message, *getattr(error, "__notes__", ("run again",))))
    return Failure(
        message, _plain(kind.message.capitalize(), message, kind.exit_code), kind.exit_code, report=kind.report
    )


def make_failure(error: BaseException) -> Failure:
    """Return the failure for any error that ends a job."""
    if isinstance(error, JobError):
        return job_error_failure(error)
    return other_failure(error) if isinstance(error, Exception) else interruption_failure(error)


def other_failure(error: Exception, arguments: Sequence[str] = ()) -> Failure:
    """Return the failure for another error: a full disk, a terminated JVM, the signal that caused the error, or a
    defect.

    arguments: those of the command, which name the folders that it writes to.
    """
    asked = signal_behind(error)
    if asked is not None:
        return interruption_failure(asked)
    words = [part for argument in arguments for part in argument.split("=", 1)]
    known = known_error(error, [after for before, after in itertools.pairwise(words) if before in _WRITTEN_TO])
    if known is not None:
        return job_error_failure(known)
    text = f"{type(error).__name__}: {error}"
    message = f"unexpected: {text.splitlines()[0]}; please report this with the lines above"
    return Failure(message, _plain(type(error).__name__, text, UNEXPECTED), UNEXPECTED, is_defect=True)


def known_error(error: Exception, written_to: Iterable[str] = ()) -> JobError | None:
    """Return the job's error for an error of another library, with its notes; None: it is a defect.

    written_to: the folders that the job writes to, one of which may be full.
    """
    classified = _classify(error, written_to)
    if classified is not None and classified is not error:
        for note in getattr(error, "__notes__", ()):
            classified.add_note(note)
    return classified


def raises_job_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function of the Python API raise the JobError for an error of another library."""

    @functools.wraps(function)
    def called(*args: P.args, **given: P.kwargs) -> R:
        try:
            return function(*args, **given)
        except (JobError, TypeError):  # the second: an argument of a wrong type
            raise
        except Exception as error:
            if (asked := signal_behind(error)) is not None:
                raise asked from None
            bound = inspect.signature(function).bind(*args, **given).arguments
            known = known_error(error, [os.fspath(bound[name]) for name in ("store", "output") if bound.get(name)])
            if known is None:
                raise
            raise known from error

    return called


def _classify(error: Exception, written_to: Iterable[str]) -> JobError | None:
    if isinstance(error, JobError):
        return error
    if isinstance(error, ModuleNotFoundError) and error.name in OF_DRIVERS:
        return NO_DRIVER_PACKAGE(what=error.name)
    if isinstance(error, PlaceError):
        return UsageError(message=str(error))
    if isinstance(error, OSError) and is_full(error):
        return _full_disk(error.filename, error.strerror or "disk full", written_to)
    text = f"{type(error).__name__}: {error}"
    if is_disk_full(error):
        named = re.search(rf"{_FULL}[^/\n]{{0,20}}?(/[^\n'\"]+)", text)
        return _full_disk(named[1] if named else None, _FULL, written_to)
    if (refused := job_error(error)) is not None:
        return refused
    stopped = _STOPPED.search(text)
    if full := re.search(r"java\.lang\.OutOfMemoryError[^\n]*", text):
        return JVM_ENDED(found=full[0])
    session = sys.modules.get("lastkey.jobs.spark.session")
    if session is not None and session.has_lost_jvm(error, _STOP_SECONDS if stopped else 0):
        return JVM_ENDED(found="the connection to it broke")
    if stopped:
        return SPARK_ENDED(found=stopped[0])
    if not isinstance(error, ImportError) and (lacks := _LACKS.search(text)):  # a worker or daemon that ended for it
        return WORKER_SETUP(found=lacks[0])
    if lost := _LOST.search(text):
        return WORKER_ENDED(found=lost[0])
    if _NO_THREAD in text or (isinstance(error, BlockingIOError) and error.filename is None):  # the second: a fork
        return PROCESS_LIMIT(found=_NO_THREAD if _NO_THREAD in text else text)
    if limited := re.search(r"Total size of serialized results[^\n]*", text):
        return SPARK_LIMIT(found=limited[0])
    if not isinstance(error, ImportError) and (unfit := _SETUP.search(text)):
        return WORKER_SETUP(found=unfit[0].splitlines()[-1].strip())
    unsafe = re.search(rf"{PlaceError.__name__}: (.*)", text)
    if unsafe:  # a folder that executors were configured to use
        return UsageError(message=unsafe[1])
    return _file_system_error(error, text)


def is_disk_full(error: BaseException) -> bool:
    """Return whether a disk is full, also that of a Spark worker: workers and the JVM report it only as text."""
    return is_full(error) or _FULL in str(error)


def _file_system_error(error: Exception, text: str) -> FileSystemError | None:
    """Return an error for an operation that the machine's file system refused; None for any other. Arrow and delta-rs
    report it in text alone.
    """
    number = error.errno if isinstance(error, OSError) else None
    first = text.splitlines()[0]
    if number is None and (numbered := _NUMBERED_LINE.search(text)):
        first, number = numbered[0].strip(), int(numbered[1] or numbered[2])
    unnamed = type(error) is OSError and number is None and _WITHOUT_NUMBER.match(str(error)) is not None
    if number not in _OF_THE_MACHINE and not unnamed:
        return None
    if isinstance(error, OSError) and error.filename is not None:
        return FileSystemError(path=os.fsdecode(error.filename), found=error.strerror)
    named = _NAMED.search(first)
    return FileSystemError(path=named[1] if named else "a file", found=first)


def _full_disk(named: object, found: str, written_to: Iterable[str]) -> MachineError:
    """Return the error for a full disk. The error has the free space of the disk with the named path; if no path is
    named, of the fullest disk that the job writes to.
    """
    session = sys.modules.get("lastkey.jobs.spark.session")
    places = [*written_to, *(session.local_folders() if session is not None else ()), tempfile.gettempdir()]
    local = [place for place in places if "://" not in place]
    path = os.fsdecode(named) if isinstance(named, str | bytes) else min(local, key=_free_bytes)
    left = f"{size(_free_bytes(path))} free" if _has_inodes(path) else "no inode free"
    return DISK_FULL(path=path, found=f"{found}, {left}")


def _free_bytes(path: str) -> int:
    """Return the free bytes of the disk on which a path is, or would be."""
    return shutil.disk_usage(_nearest_existing_folder(path)).free


def _has_inodes(path: str) -> bool:
    """Return whether a file can be made there; some file systems do not count inodes."""
    found = os.statvfs(_nearest_existing_folder(path))
    return found.f_favail > 0 or found.f_files == 0


def _nearest_existing_folder(path: str) -> Path:
    folder = Path(path).absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def signal_behind(error: Exception) -> BaseException | None:
    """Return the signal that caused an error, if any: Spark reports jobs that it cancelled only as failed."""
    before: BaseException | None = None if isinstance(error, OSError) else error
    while before is not None and not isinstance(before, KeyboardInterrupt | EarlyEndError):
        before = before.__context__
    return before


def _plain(kind: str, message: str, code: int) -> dict[str, object]:
    nothing = dict.fromkeys(("path", "position", "expected", "found"))
    return {"kind": kind, "exit_code": code, "message": message, "hint": "", **nothing}


def job_error(error: Exception) -> JobError | None:
    """Return the job's error for an unusable bucket, also if only the text of a failed Spark task or of delta-rs
    reports the failure; None for any other error.
    """
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, AccessError):
        where, kind, found = error.where, error.kind, error.found
    elif match := _IN_TEXT.search(message):
        where, kind, found = match[1], match[2], match[3]
    elif by_delta := classify_message(message):
        url = _URL.search(message)
        where, kind, found = f"the bucket at {url[0]}" if url else "the bucket", by_delta, in_one_line(message)
    else:
        return None
    return _KINDS[kind](path=where, reason=kind, found=found)
