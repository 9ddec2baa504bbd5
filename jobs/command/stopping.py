"""Early and orderly end of a run: finished work is kept, the rest is removed.

The first Ctrl-C or SIGTERM asks for the end. The second one ends the run at once, as the first does outside of
`stoppable`; after that no signal is caught any more. Other code that wants an early end calls `Stop.request_end`.

Only the command line handles signals, because its process does no other work. A Python program that calls a job keeps
its own handlers: Ctrl-C raises KeyboardInterrupt there, and ends the run at once.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, InvalidStateError, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, ClassVar, Final, NoReturn, TypeVar

from lastkey.jobs.errors import PARTIAL

if TYPE_CHECKING:
    from lastkey.jobs.command.reporting import JobReport

T = TypeVar("T")
_LOG: Final = logging.getLogger("lastkey")
_HANDLES: Final = ContextVar("_HANDLES", default=False)  # this thread runs the command line, whose signals are ours
_SAME_SECONDS: Final = 0.25  # signals closer together count as one: `timeout` signals the process and its group
# Maximum sleep of the main thread, which runs the handlers. A signal wakes this thread only if it slept already, and if
# the system did not give the signal to another thread
LOOK_SECONDS: Final = 0.5


class EarlyEndError(BaseException):
    """Exception that unwinds a run that was asked to end, to release locks and sessions. Notes name what is left."""

    exit_code: ClassVar[int]
    message: ClassVar[str]
    report: JobReport | None = None  # report of the work that was done until then


class InterruptedRunError(EarlyEndError, KeyboardInterrupt):
    """Early end by Ctrl-C."""

    exit_code, message = 130, "interrupted"


class TerminatedError(EarlyEndError):
    """Early end by SIGTERM."""

    exit_code, message = 143, "terminated"


class OutOfTimeError(EarlyEndError):
    """Early end by --max-runtime. It is never raised: the user asked for it, and the report shows it."""

    exit_code, message = PARTIAL, "--max-runtime is over"


def terminate(number: int, frame: FrameType | None) -> NoReturn:
    """End the run at once, for SIGTERM."""
    raise TerminatedError


_ERRORS: Final = {signal.SIGINT: InterruptedRunError, signal.SIGTERM: TerminatedError}


@contextmanager
def signals_handled() -> Iterator[None]:
    """Let `at_once` and `stoppable` change how this process handles signals: only its command line may."""
    token = _HANDLES.set(True)
    try:
        yield
    finally:
        _HANDLES.reset(token)


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[list[signal.Signals]]:
    """Handle Ctrl-C and SIGTERM with `handler` inside the `with` block; yield those that the process does not ignore.

    Only the main thread of a command can do so: elsewhere no handler changes, and the list is empty.
    """
    before = {number: signal.getsignal(number) for number in _ERRORS if callable(signal.getsignal(number))}
    if not (_HANDLES.get() and threading.current_thread() is threading.main_thread()):
        before = {}
    for number in before:
        signal.signal(number, handler)
    try:
        yield list(before)
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def await_result(future: Future[T]) -> T:
    """Return a future's result, or raise its error. Unlike `Future.result`, wake up regularly, so that signals are
    handled.
    """
    return await_results([future])[0]


def await_results(futures: Sequence[Future[T]]) -> list[T]:
    """Return the results of futures, as `await_result` does. Raise the first error at once: the others may
    need long to find the same, for example if a server does not answer.
    """
    pending: Collection[Future[T]] = futures
    while pending:
        done, pending = wait(pending, LOOK_SECONDS, FIRST_EXCEPTION)
        for future in done:
            future.result()
    return [future.result() for future in futures]


def in_a_thread(work: Callable[[], T], name: str, kind: Callable[..., threading.Thread] = threading.Thread) -> T:
    """Return the result of `work`, or raise its error, from a thread of its own. Ctrl-C and SIGTERM find the caller
    waiting, and not in the middle of a call to the JVM.
    """
    return await_result(begin(work, name, kind))


def begin(work: Callable[[], T], name: str, kind: Callable[..., threading.Thread] = threading.Thread) -> Future[T]:
    """Begin `work` in a daemon thread. At its end the process does not wait for that thread, as it would for a thread
    of a ThreadPoolExecutor. kind: class of the thread.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:  # raised by Future.result
            result.set_exception(error)

    kind(target=run, daemon=True, name=name).start()
    return result


def within(seconds: float, work: Callable[[], str], name: str) -> str:
    """Return the result of `work`, which runs in a daemon thread, or after that time that there is none."""
    try:
        return begin(work, name).result(seconds)
    except TimeoutError:
        return f"no answer for {seconds:.0f} s"


def at_once() -> AbstractContextManager[object]:
    """Let Ctrl-C and SIGTERM end the process as the system does, inside the `with` block: there is no work to undo yet.

    For imports: Python drops a KeyboardInterrupt that is raised in one of importlib's own callbacks, and continues.
    """
    return _handling(_end)


def _end(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


class Stop:
    """Request for an early end of a run. `asked` is a future: its result is the reason."""

    def __init__(self) -> None:
        self.asked: Future[EarlyEndError] = Future()

    @property
    def is_asked(self) -> bool:
        """True once the run is to end."""
        return self.asked.done()

    def request_end(self, why: EarlyEndError) -> None:
        """End the run; only the first reason counts."""
        with suppress(InvalidStateError):
            self.asked.set_result(why)


@contextmanager
def ended_in_time(stop: Stop, ends_at: float | None) -> Iterator[None]:
    """Ask for an early end at this time of the monotonic clock, inside the `with` block; None: never."""
    if ends_at is None:
        yield
        return
    left = min(max(ends_at - time.monotonic(), 0), threading.TIMEOUT_MAX)
    timer = threading.Timer(left, stop.request_end, [OutOfTimeError()])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Let the first Ctrl-C or SIGTERM ask for an early end inside the `with` block, and only the second one raise.

    A signal that the process ignores stays ignored. A thread other than the main one, or a caller of the Python API,
    gets no signal.
    """
    stop, numbers = Stop(), list[signal.Signals]()
    came: SimpleQueue[EarlyEndError | None] = SimpleQueue()  # other queues could wait for a lock that this thread holds
    first_at: float | None = None

    def heard(number: int, frame: FrameType | None) -> None:
        nonlocal first_at
        error = _ERRORS[signal.Signals(number)]()
        if first_at is None:
            first_at = time.monotonic()
            came.put(error)
        elif time.monotonic() - first_at >= _SAME_SECONDS:
            for each in numbers:
                signal.signal(each, signal.SIG_DFL)
            raise error

    def hand_on() -> None:
        error = came.get()
        if error is not None:
            stop.request_end(error)  # first: a log may wait for a lock
            _LOG.warning("stopping: what is finished is kept; a second signal ends the run at once")

    threading.Thread(target=hand_on, daemon=True, name="signals").start()
    with _handling(heard) as handled:
        numbers += handled
        try:
            yield stop
        finally:
            came.put(None)
