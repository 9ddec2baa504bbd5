"""Where things lie in a store. No other module spells these paths.

state/<table>                                 a Delta table
segments/<topic>-<n>/<generation>-<run id>    what a run wrote of one partition, never changed again, and its manifest
"""

from __future__ import annotations

import re
from typing import Final

from logformat import names

CHECKPOINTS: Final = "compaction_checkpoints"
SEGMENTS: Final = "log_segments"
STATES: Final = "cleaner_state"
RUNS: Final = "cleaner_runs"
TIME_INDEX: Final = "time_index"  # written by jobs.store.minutes; no part of a generation
TABLES: Final = (CHECKPOINTS, SEGMENTS, STATES, RUNS, TIME_INDEX)

PARTITIONS: Final = "segments"  # a folder for each partition is in it
MANIFEST: Final = "manifest.json"  # in a run's folder, see jobs.store.manifests
ROLLED_BACK: Final = "rolled-back.json"  # the same, of a generation that was rolled back

# With what is put behind it: a part of the run id where such a folder was committed (jobs.spark.tasks.for_this_attempt,
# jobs.compact.waves), and again behind that where a generation's segments and key files wait (udfs.compact.key_files)
_RUN_FOLDER: Final = re.compile(r"(?P<generation>[1-9][0-9]{0,18})-(?P<run_id>[0-9a-f]{32}(\.[0-9]{1,19}){0,2})")


def table_folder(table: str) -> str:
    """Where a table lies."""
    return f"state/{table}"


def partition_folder(topic: str, partition: int) -> str:
    """Where the folders of all runs of one partition lie."""
    return f"{PARTITIONS}/{names.partition_folder(topic, partition)}"


def generation_folder(topic: str, partition: int, generation: int, run_id: str) -> str:
    """The folder of the run that made a generation."""
    return f"{partition_folder(topic, partition)}/{generation}-{run_id}"


def parse_run_folder(name: str) -> tuple[int, str] | None:
    """(generation, run id) by the name of a run's folder; None: it is none."""
    found = _RUN_FOLDER.fullmatch(name)
    return None if found is None else (int(found["generation"]), found["run_id"])


def run_id_of(folder: str) -> str:
    """The run id of a generation's folder."""
    return folder.rpartition("/")[2].partition("-")[2]
