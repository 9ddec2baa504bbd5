"""Index files that a broker can trust: check -> reindex -> verify.

`check` looks and changes nothing. Where all is right, `reindex` is skipped. `verify` then reads every byte of the
archive. With `output` the archive stays as it is, so what was wrong in it still is: `verify` is skipped.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import DAG, Param
from lastkey_operator import DONE, PROBLEMS, LastkeyOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

ARCHIVE = "{{ params.archive }}"
SOME = ("{{ '--topics=' ~ params.topics if params.topics else '' }}",
        "{{ '--config=' ~ params.config if params.config else '' }}")  # fmt: skip
# A folder for each try, since it has to be new
OUTPUT = "{{ params.output }}/{{ dag_run.run_after | ts_nodash }}-{{ ti.try_number }}"
WHERE = "{% if params.output %}--output=" + OUTPUT + "{% else %}--in-place{% endif %}"


def _all_right(context: Context) -> bool:
    found = context["ti"].xcom_pull(task_ids="check")  # None: somebody marked the task as done
    return bool(found) and found["exit_code"] == DONE


def nothing_to_rebuild(context: Context) -> str | None:
    """Why `reindex` is skipped."""
    return "every index file is what the log says" if _all_right(context) else None


def nothing_was_mended(context: Context) -> str | None:
    """Why `verify` is skipped."""
    output = context["params"]["output"]
    return None if _all_right(context) or not output else f"the rebuilt files are in {output}, not in the archive"


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
        "topics": Param(None, type=["null", "string"], description="Only topics that match this glob"),
        "output": Param(None, type=["null", "string"], description="Rebuilt files go below; empty: in place"),
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
