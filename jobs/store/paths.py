"""Paths in a store. No other module spells them.

state/<table>                                 a Delta table
state/audit.key                               key of the hashes in the tables audit_*, for the owner alone
state/running/<run id>.json                   lease of a run
erasures/<id>                                 digests of the keys of an erasure, see jobs.store.erasures
segments/<topic>-<n>/<generation>-<run id>    files that a run wrote of one partition, never changed, and its manifest
"""

from __future__ import annotations

import re
from typing import Final

from lastkey.logformat import names

CHECKPOINTS: Final = "compaction_checkpoints"
STATES: Final = "cleaner_state"
RUNS: Final = "cleaner_runs"
TIME_INDEX: Final = "time_index"  # written by jobs.store.minutes; no part of a generation
# Written by jobs.store.audits; no part of a generation either
AUDIT_READS: Final = "audit_reads"
AUDIT_ENTRIES: Final = "audit_entries"
AUDIT_KEYS: Final = "audit_keys"
AUDIT_DELIVERIES: Final = "audit_deliveries"
AUDIT_PAIRS: Final = "audit_pairs"
AUDIT_TABLES: Final = (AUDIT_READS, AUDIT_ENTRIES, AUDIT_KEYS, AUDIT_DELIVERIES, AUDIT_PAIRS)
TABLES: Final = (CHECKPOINTS, STATES, RUNS, TIME_INDEX, *AUDIT_TABLES)

RUNNING: Final = "state/running"  # leases of runs, see jobs.store.leases
ERASED_KEYS: Final = "erasures"
AUDIT_KEY: Final = "state/audit.key"
PARTITIONS: Final = "segments"  # a folder for each partition is in it
MANIFEST: Final = "manifest.json"  # in a run's folder, see jobs.store.manifests
COMMITTED: Final = "committed"  # beside it, written after the commit

# The run id may have two suffixes. The attempt is part of the run id in a committed folder
# (jobs.spark.running.folder_of_this_attempt, jobs.compact.waves). The other suffix is for the folder in which a
# generation's segments wait (udfs.compact.split_stages.own_folder)
RUN_FOLDER: Final = r"[1-9][0-9]{0,18}-[0-9a-f]{32}(?:\.[0-9]{1,19}){0,2}"
_RUN_FOLDER: Final = re.compile(RUN_FOLDER)


def is_audit_table(name: str) -> bool:
    """Return whether a folder below `state/` is a table of audits: one of AUDIT_TABLES, or one of an older version."""
    return name.startswith("audit_")


def table_folder(table: str) -> str:
    """Return the folder of a table, below the store."""
    return f"state/{table}"


def partition_folder(topic: str, partition: int) -> str:
    """Return the folder that holds those of all runs of one partition."""
    return f"{PARTITIONS}/{names.partition_folder(topic, partition)}"


def generation_folder(topic: str, partition: int, generation: int, run_id: str) -> str:
    """Return the folder of the run that made a generation."""
    return f"{partition_folder(topic, partition)}/{generation}-{run_id}"


def parse_run_folder(name: str) -> tuple[int, str] | None:
    """Return (generation, run id) from the name of a run's folder; None for any other name."""
    generation, _, run_id = name.partition("-")
    return None if _RUN_FOLDER.fullmatch(name) is None else (int(generation), run_id)


def parse_run_id(folder: str) -> str:
    """Return the run id from the path of a generation's folder."""
    return folder.rpartition("/")[2].partition("-")[2]
