"""Runs of jobs that change a store, each with a row in its table `cleaner_runs`, written once, when the run ends.

No row is written by a dry run, or below a path that is no store yet or has lost its tables. An error in options or
settings (exit code 2) may name the wrong store, so it writes no row either. An audit has a row in the store of its
tables. A row that cannot be written within PATIENCE seconds is a note: the run ends as it would have ended.
"""

from __future__ import annotations

import json
import logging
import os
import pwd
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from lastkey.jobs import installation
from lastkey.jobs.archive.places import local_path
from lastkey.jobs.command.failures import make_failure
from lastkey.jobs.command.reporting import JobReport
from lastkey.jobs.command.stopping import EarlyEndError, within
from lastkey.jobs.errors import USAGE
from lastkey.jobs.store.folders import check_no_links
from lastkey.jobs.store.history import killed_row
from lastkey.jobs.store.leases import Lease
from lastkey.jobs.store.paths import AUDIT_READS, CHECKPOINTS, PARTITIONS, RUNS
from lastkey.jobs.store.rows import JobRow
from lastkey.jobs.store.tables import State
from lastkey.jobs.store.writing import append_job_rows
from lastkey.udfs.storage import exists, normal_uri, open_root

R = TypeVar("R", bound=JobReport)
PATIENCE: Final = 5.0  # seconds for the row of a run, at its end
_MOST_TEXT: Final = 500  # characters of an error
_LOG: Final = logging.getLogger("lastkey")


def recorded(job: str, store: str, work: Callable[[], R], *, dry_run: bool) -> R:
    """Return the report of `work`, a run of a job on a store, after its row was written. Its errors pass through."""
    if dry_run:
        return work()
    if (path := local_path(store)) is not None:
        check_no_links(open_root(path))
    started_ms = _now_ms()
    try:
        report = work()
    except (Exception, KeyboardInterrupt, EarlyEndError) as error:
        failure = make_failure(error)
        row = _row(job, started_ms, failure.exit_code, failure.report, failure.line)
        if failure.exit_code != USAGE and (unwritten := _write(store, [row])):
            _LOG.warning("%s", unwritten)
        raise
    row = _row(job, started_ms, report.exit_code, report)
    if unwritten := _write(store, [row]):
        report.notes.append(unwritten)
    return report


def record_killed(store: str, expired: Sequence[Lease]) -> list[str]:
    """Write rows of runs whose leases expired. Return notes."""
    if not expired:
        return []
    unwritten = _write(store, [killed_row(lease) for lease in expired])
    return [unwritten] if unwritten else []


def user() -> str:
    """Return the name of the user who runs this process; its number if it has no name."""
    with suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return str(os.getuid())


def _row(job: str, started_ms: int, exit_code: int, report: JobReport | None, error: str = "") -> JobRow:
    work = report.work if report is not None else None
    return JobRow(
        run_id=getattr(report, "run_id", "") or uuid.uuid4().hex,
        job=job,
        started_ms=started_ms,
        ended_ms=_now_ms(),
        exit_code=exit_code,
        user=user(),
        host=socket.gethostname(),
        pid=os.getpid(),
        application=work.application if work is not None else "",
        version=installation.version(),
        error=error[:_MOST_TEXT],
        figures=json.dumps(report.figures() if report is not None else {}),
    )


def _write(store: str, new: Sequence[JobRow]) -> str:
    """Append rows; return why that failed, "" if it did not. It has its own thread, because a store that does not
    answer must not hold the end of a run.
    """

    def work() -> str:
        try:
            state = State(open_root(normal_uri(store)))
            if state.table_exists(CHECKPOINTS) or _holds_only_audits(state):
                append_job_rows(state, new)
        except BaseException as error:  # a panic of delta-rs too: an error here is no error of the run
            return str(error).partition("\n")[0] or type(error).__name__
        return ""

    failed = within(PATIENCE, work, "job-row")
    return f"this run is not in the table {RUNS}: {failed}" if failed else ""


def _holds_only_audits(state: State) -> bool:
    """Return whether audits alone use a store. Of a store that has lost its tables, `rebuild-state` makes them."""
    return state.table_exists(AUDIT_READS) and not exists(state.root, PARTITIONS)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
