"""Compaction of a partition in one task: the way of every partition that is not shared by several tasks (`large`).

Executors import this module, so nothing of Delta, which they may lack.
"""

from __future__ import annotations

from dataclasses import replace

from lastkey.jobs.spark.attempts import folder_of_this_attempt
from lastkey.udfs.compact.compact_partition import compact_partition
from lastkey.udfs.compact.plan import PartitionPlan, PartitionResult


def one_partition(plan: PartitionPlan) -> PartitionResult:
    """Compact a partition in one task."""
    # another try of this task has another folder; that of the one that counts is the generation's
    folder = folder_of_this_attempt(plan.run.store_uri, plan.run.folder)
    return compact_partition(replace(plan, run=replace(plan.run, folder=folder)))
