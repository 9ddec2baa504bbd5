"""Index files that a broker can trust: check -> reindex -> verify.

`check` reports and changes nothing. If all files are right, `reindex` is skipped. Else it writes the rebuilt files to a
new folder below `output`; the archive stays as it is, wrong files included, so `verify` is skipped. With `in_place` it
replaces the files in the archive. `verify` then reads every byte of the archive.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from airflow.sdk import DAG, Param
from lastkey_operator import DONE, PROBLEMS, LastkeyOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

ARCHIVE = "{{ params.archive }}"
SOME = ("{{ '--topics=' ~ params.topics if params.topics else '' }}",
        "{{ '--exclude=' ~ params.exclude if params.exclude else '' }}",
        "{{ '--config=' ~ params.config if params.config else '' }}")  # fmt: skip
# One folder a try, because it must be new.
OUTPUT = "{{ params.output }}/{{ dag_run.run_after | ts_nodash }}-{{ ti.try_number }}"
WHERE = "{% if params.in_place %}--in-place{% else %}--output=" + OUTPUT + "{% endif %}"
HOME = Path(os.environ.get("AIRFLOW_HOME", "~/airflow")).expanduser().absolute()


def _all_right(context: Context) -> bool:
    found = context["ti"].xcom_pull(task_ids="check")  # None: a user marked the task as done
    return bool(found) and found["exit_code"] == DONE


def nothing_to_rebuild(context: Context) -> str | None:
    """Return the reason to skip `reindex`, or None."""
    return "every index file is what the log says" if _all_right(context) else None


def nothing_was_mended(context: Context) -> str | None:
    """Return the reason to skip `verify`, or None."""
    params = context["params"]
    if _all_right(context) or params["in_place"]:
        return None
    return f"the rebuilt files are in {params['output']}, not in the archive"


with DAG(
    "lastkey_reindex",
    description="Rebuild the index files of an archive of Kafka logs, and prove them",
    doc_md=__doc__,
    schedule=None,
    max_active_runs=1,
    tags=["lastkey", "kafka"],
    default_args={"retries": 3, "retry_delay": timedelta(minutes=10)},
    params={
        "archive": Param(type="string", pattern="^[^-]", description="The archive: a path, or a URI"),
        "topics": Param(None, type=["null", "string"], description="Only these topics: globs, separated by commas"),
        "exclude": Param(None, type=["null", "string"], description="Not these topics: globs, separated by commas"),
        "output": Param(
            str(HOME / "lastkey-reindex"), type="string", pattern="^[^-]", description="Rebuilt files go below"
        ),
        "in_place": Param(False, type="boolean", description="Replace files in the archive instead"),
        "config": Param(None, type=["null", "string"], description="A settings file"),
    },
) as dag:
    check = LastkeyOperator(
        task_id="check", job="reindex", arguments=[ARCHIVE, "--check", *SOME], done=(DONE, PROBLEMS)
    )
    reindex = LastkeyOperator(
        task_id="reindex", job="reindex", arguments=[ARCHIVE, WHERE, *SOME], skip=nothing_to_rebuild
    )
    verify = LastkeyOperator(
        task_id="verify", job="verify", arguments=[ARCHIVE, *SOME], skip=nothing_was_mended, trigger_rule="none_failed"
    )
    check >> reindex >> verify
