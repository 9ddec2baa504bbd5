"""Task of a partition that one task takes. Executors import this module, so nothing of Delta, which they may lack."""

from __future__ import annotations

from dataclasses import replace

from lastkey.jobs.command.progress import Counted, Silent
from lastkey.jobs.compact.choose import KEYS
from lastkey.jobs.compact.splits import compact_in_splits
from lastkey.jobs.spark.attempts import folder_of_this_attempt
from lastkey.jobs.spark.workers import InTurn
from lastkey.udfs.compact.one_task.compact_partition import compact_partition
from lastkey.udfs.compact.plan import PartitionPlan, PartitionResult


def one_partition(plan: PartitionPlan) -> PartitionResult:
    """Compact a partition. A dry run goes on by itself where the keys do not fit this task."""
    # another try of this task has another folder; that of the one that counts is the generation's
    folder = folder_of_this_attempt(plan.run.store_uri, plan.run.folder)
    result = compact_partition(replace(plan, run=replace(plan.run, folder=folder)))
    if result.status != "too_large" or not plan.run.dry_run:
        return result
    return replace(compact_in_splits(InTurn(), plan, Counted(Silent())), several_because=KEYS)
