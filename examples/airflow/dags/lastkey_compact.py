"""Compaction at night: compact -> verify -> archive-needed, and an alert where one of them failed.

`compact` commits each partition that it can clean. An uncleanable one fails the task, and the others are
cleaned all the same. So `verify` and `archive_needed` run whatever became of it: the first reads the store, the second
lists the segments of the archive that are not needed any more. `alert` waits for all three. Where one failed it posts
what they found to `alert_url`, and fails, because else Airflow would call the run a success; else it is skipped.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Param
from lastkey_operator import AlertOperator, LastkeyOperator

ARCHIVE, STORE = "{{ params.archive }}", "--store={{ params.store }}"
SOME = ("{{ '--topics=' ~ params.topics if params.topics else '' }}",
        "{{ '--exclude=' ~ params.exclude if params.exclude else '' }}")  # fmt: skip
CONFIG = "{{ '--config=' ~ params.config if params.config else '' }}"
UNTIL = "{{ '--max-runtime=' ~ params.max_runtime if params.max_runtime else '' }}"

with DAG(
    "lastkey_compact",
    description="Compact an archive of Kafka logs, prove the store, and say what of the archive is still needed",
    doc_md=__doc__,
    schedule=None,
    max_active_runs=1,
    tags=["lastkey", "kafka"],
    default_args={"retries": 3, "retry_delay": timedelta(minutes=10)},
    params={
        "archive": Param(type="string", pattern="^[^-]", description="The archive: a path, or a URI"),
        "store": Param(type="string", pattern="^[^-]", description="The store: a path, or a URI"),
        "topics": Param(None, type=["null", "string"], description="Only these topics: globs, separated by commas"),
        "exclude": Param(None, type=["null", "string"], description="Not these topics: globs, separated by commas"),
        "config": Param(None, type=["null", "string"], description="A settings file, with the topics' policies"),
        "max_runtime": Param(None, type=["null", "string"], description="Stop after this time, as 5h"),
        "alert_url": Param(
            None, type=["null", "string"], pattern="^https?://", description="Gets a JSON post where a task failed"
        ),
    },
) as dag:
    compact = LastkeyOperator(task_id="compact", job="compact", arguments=[ARCHIVE, STORE, *SOME, CONFIG, UNTIL])
    verify = LastkeyOperator(task_id="verify", job="verify", arguments=[STORE, *SOME, CONFIG], trigger_rule="all_done")
    archive_needed = LastkeyOperator(
        task_id="archive_needed", job="archive-needed", arguments=[ARCHIVE, STORE, *SOME], trigger_rule="all_done"
    )
    alert = AlertOperator(task_id="alert", url="{{ params.alert_url or '' }}", trigger_rule="all_done", retries=0)
    compact >> verify >> archive_needed >> alert
    [compact, verify] >> alert
