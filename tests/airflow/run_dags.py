"""Runs of the example DAGs: requests as JSON on stdin, results on stdout. For Airflow's own environment.

One process for all of them, because Airflow takes ten seconds to start. The result of a run is a line that begins with
RESULT; the text before it is its log.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.dag_processing.dagbag import BundleDagBag
from airflow.sdk import DAG

RESULT = "RESULT "
DAGS = Path(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
HOLD = (
    "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX)"
    "; print('held', flush=True); sys.stdin.read()"
)


class Holder:
    """Another process that holds a lock file as a broker does."""

    def __init__(self, path: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def release(self) -> None:
        """Terminate the process if it is running."""
        if self.process.poll() is None:
            self.process.communicate()


def bag() -> BundleDagBag:
    """Return the DAGs folder, as Airflow reads it."""
    return BundleDagBag(dag_folder=DAGS, bundle_path=DAGS, bundle_name="dags-folder")


def structure(bag: BundleDagBag) -> dict[str, Any]:
    """Return the DAGs as Airflow sees them."""
    return {
        "import_errors": bag.import_errors,
        "captured_warnings": {str(path): list(found) for path, found in bag.captured_warnings.items()},
        "dags": {name: dag_structure(dag) for name, dag in bag.dags.items()},
    }


def dag_structure(dag: DAG) -> dict[str, Any]:
    """Return one DAG as Airflow sees it."""
    return {
        "max_active_runs": dag.max_active_runs,
        "params": {name: dag.params.get_param(name).schema for name in dag.params},
        "doc": dag.doc_md,
        "tasks": {
            task.task_id: {
                "kinds": [f"{kind.__module__}.{kind.__name__}" for kind in type(task).__mro__],
                "downstream": sorted(task.downstream_task_ids),
                "trigger_rule": task.trigger_rule.value,
                "retries": task.retries,
                "retry_delay": task.retry_delay.total_seconds(),
                "connection": getattr(task, "_conn_id", None),
            }
            for task in dag.tasks
        },
    }


def run(
    dag: DAG,
    conf: dict[str, Any],
    hold: str | None = None,
    env: dict[str, str] | None = None,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Run a DAG once to its end.

    `hold`: a lock file that another process holds until a task is up for retry. `timeout`: Airflow kills a task after
    so many seconds.
    """
    before = dict(os.environ)
    os.environ.update(env or {})
    retried: list[tuple[str, str]] = []
    holder = Holder(hold) if hold else None

    def on_retry(context: Any) -> None:
        retried.append((context["ti"].task_id, str(context.get("exception"))))
        if holder:
            holder.release()

    for task in dag.tasks:
        task.retries, task.retry_delay = 1, timedelta(0)  # else the test would take half an hour
        task.on_retry_callback = [on_retry]
        task.execution_timeout = timedelta(seconds=timeout) if timeout else None
    try:
        dag_run = dag.test(run_conf=conf)
    finally:
        if holder:
            holder.release()
        os.environ.clear()
        os.environ.update(before)
    tasks = {ti.task_id: ti for ti in dag_run.get_task_instances()}
    return {
        "state": dag_run.state,
        "tasks": {name: ti.state for name, ti in tasks.items()},
        "tries": {name: ti.try_number for name, ti in tasks.items()},
        "xcom": {name: ti.xcom_pull(task_ids=name) for name, ti in tasks.items()},
        "retried": retried,
    }


def main() -> None:
    """Print the structure of the DAGs, then the result of each run."""
    print(RESULT + json.dumps(structure(bag())), flush=True)
    for request in json.load(sys.stdin):
        dag = bag().dags[
            request.pop("dag")
        ]  # loaded again: a run's parameters stay in the DAG that `test` was called on
        print("\n" + RESULT + json.dumps(run(dag, **request)), flush=True)


if __name__ == "__main__":
    main()
