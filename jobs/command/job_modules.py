"""Modules of the jobs by command, imported when a job runs: help, and errors in options, come without Spark."""

from __future__ import annotations

import importlib
from typing import Any

from lastkey.jobs.command.stopping import at_once

# command -> module with run(options, progress) -> Report
JOBS = {
    "compact": "lastkey.jobs.compact.job",
    "policies": "lastkey.jobs.policies.job",
    "verify": "lastkey.jobs.verify.job",
    "archive-needed": "lastkey.jobs.archive_needed.job",
    "reindex": "lastkey.jobs.reindex.job",
    "convert": "lastkey.jobs.convert.job",
    "merge": "lastkey.jobs.merge.job",
    "replay": "lastkey.jobs.replay",
    "export": "lastkey.jobs.export.job",
    "inspect": "lastkey.jobs.inspect_log",
    "lookup": "lastkey.jobs.lookup.job",
    "restore": "lastkey.jobs.restore.job",
    "rollback": "lastkey.jobs.rollback",
    "erase": "lastkey.jobs.erase.job",
    "runs": "lastkey.jobs.runs",
    "rebuild-state": "lastkey.jobs.rebuild_state",
    "vacuum": "lastkey.jobs.vacuum",
    "report": "lastkey.jobs.report.job",
    "audit keys": "lastkey.jobs.audit.keys",
    "audit delivery": "lastkey.jobs.audit.delivery",
    "audit mirror": "lastkey.jobs.audit.mirror_job",
    "audit failover": "lastkey.jobs.audit.failover_job",
    "pack": "lastkey.jobs.pack",
}


def imported(job: str) -> Any:
    """Import a job's module. In the command line's process Ctrl-C then ends the process."""
    with at_once():
        return importlib.import_module(JOBS[job])
