"""Jobs as Spark's own tools show them, by command, partition and stage: the UI's REST, its metrics, an event log."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# Options as of spark-submit: what the user asks for wins over our spark-defaults.conf, which has no UI
_OPTIONS = "--master local[2] --conf spark.ui.enabled=true --conf spark.ui.port=0 --conf spark.eventLog.enabled=true"
_RUNS = """
import json, sys, urllib.request
import lastkey
from pyspark import SparkContext
folder, archive = sys.argv[1], "examples/archive"
topics = {"orders": {"cleanup.policy": "compact"}}
done = [
    lastkey.compact(archive, f"{folder}/{by}", config={"topics": topics, "job": {"split.by": by}}, engine="spark")
    for by in ("always", "none")
]
with urllib.request.urlopen(f"{SparkContext._active_spark_context.uiWebUrl}/metrics/json") as answer:
    metrics = {name.partition(".lastkey.")[2]: gauge["value"] for name, gauge in json.load(answer)["gauges"].items()}
results = [result for report in done for result in report.results]
done.append(lastkey.verify(archive, topics="users", engine="spark"))
done.append(lastkey.reindex(archive, check=True, topics="users", engine="spark"))
context = SparkContext._active_spark_context
url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
def names(kind, name):
    with urllib.request.urlopen(f"{url}/{kind}") as answer:
        return sorted({each[name] for each in json.load(answer)})
print(json.dumps({
    "metrics": [metrics[name] for name in ("bytes_read", "bytes_written", "records_kept")],
    "done": [sum(r.work.bytes_read for r in results), sum(r.work.bytes_written for r in results),
        sum(r.work.counters["records_kept"] for r in results)],
    "tasks": sum(report.work.tasks for report in done),
    "jobs": names("jobs", "description"), "stages": names("stages", "name"),
    "left": [context.getLocalProperty("spark.job.description"), sorted(context.getJobTags())]}))
context.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_jobs_and_stages_have_names_and_metrics_in_the_ui_and_in_event_logs(tmp_path):
    events = tmp_path / "events"
    events.mkdir()
    options = f"{_OPTIONS} --conf spark.eventLog.dir={events.as_uri()} --conf spark.eventLog.compress=false"
    environment = {"PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell", "PYTHONPATH": str(ROOT)}
    completed = subprocess.run(
        [sys.executable, "-c", _RUNS, str(tmp_path)], cwd=ROOT, env={**os.environ, **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr[-3000:]
    shown = json.loads(completed.stdout)
    assert shown["metrics"] == shown["done"] and all(shown["done"])
    [log] = events.glob("*/events_*")
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    jobs = [line for line in lines if line["Event"] == "SparkListenerJobStart"]
    names = {job["Properties"]["spark.job.description"] for job in jobs}
    stages = {stage["Stage Name"] for job in jobs for stage in job["Stage Infos"]}
    assert names == set(shown["jobs"]) == stages == set(shown["stages"])
    ended = [line for line in lines if line["Event"] == "SparkListenerTaskEnd"]
    assert shown["tasks"] == len(ended)  # tasks of the data frames too
    parts = {name.partition(":")[0] for name in names}
    assert parts == {"compact orders-0", "compact", "verify", "reindex"}, names
    assert {"compact orders-0: scan", "compact orders-0: local survivors, last of each key, rewrite"} < names
    plans = [line["physicalPlanDescription"] for line in lines if line["Event"].endswith("SQLExecutionStart")]
    [plan] = [plan for plan in plans if "local_survivors_of_splits(" in plan]  # each partition in several tasks has one
    stages = re.findall(r"^Arguments: (\w+_\w+)\(", plan, re.MULTILINE)  # functions; no expression has this form
    assert stages == ["local_survivors_of_splits", "last_of_keys_in_buckets", "rewritten_groups"]
    assert all(job["Properties"]["spark.job.tags"].startswith("lastkey-") for job in jobs)
    assert shown["left"] == [None, []]  # the caller's thread has its own again
