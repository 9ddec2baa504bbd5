"""Airflow operator for a job of Lastkey: the Spark provider's submit operator, with exit codes mapped to Airflow.

    exit code                                Airflow
    0 done                                   success
    3 problems                               fail, no retry: the same files give the same answer
    4 conflict: a broker or a run holds it   retry later
    1 unexpected  2 usage  5 environment     fail, no retry: somebody has to look
    6 partial: --max-runtime was over        fail, no retry, unless `done` holds it: the next run continues
    130, 143, ended by a signal              retry: the worker went away

The task's log holds the report: a line of JSON for each partition, without the files that are right, and one for the
rest. The task's XCom is a summary of the report, also after a failure.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

if TYPE_CHECKING:
    from airflow.sdk import Context

DONE, UNEXPECTED, USAGE, PROBLEMS, CONFLICT, ENVIRONMENT = range(6)
SIGNAL = 128  # a shell's exit codes above it are signals; Python's are negative

CHECKOUT = str(Path(__file__).resolve().parents[3])  # correct if this file lies in a checkout of Lastkey
LISTED = 20  # findings in a summary; the log has all
POST_SECONDS = 10


class LastkeyOperator(SparkSubmitOperator):
    """Operator that runs a job of Lastkey and maps its exit code.

    :param job: `reindex`, `verify`, ...
    :param arguments: arguments of the job (templated); empty ones are left out
    :param done: exit codes that are a success; with --max-runtime {0, 6}
    :param skip: returns the reason to skip the task, from its context; None: run it
    :param home: the checkout of Lastkey (templated)
    """

    template_fields: Sequence[str] = (*SparkSubmitOperator.template_fields, "home")

    def __init__(
        self,
        *,
        job: str,
        arguments: Sequence[str],
        done: Collection[int] = (DONE,),
        skip: Callable[[Context], str | None] | None = None,
        home: str = "{{ var.value.get('lastkey_home', '" + CHECKOUT + "') }}",
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault("name", f"lastkey-{job}")
        super().__init__(application=job, application_args=[*arguments, "--json"], **kwargs)
        self.done = done
        self.skip = skip
        self.home = home

    def execute(self, context: Context) -> Any:
        """Run the job and return the summary of its report. Raise the exception for its exit code."""
        reason = self.skip(context) if self.skip else None
        if reason:
            raise AirflowSkipException(reason)
        launcher = Path(self.home) / "examples" / "airflow" / "bin"
        if not (launcher / "spark-submit").is_file():
            raise AirflowFailException(f"{launcher}/spark-submit: not found; is the variable lastkey_home a checkout?")
        self.application_args = [argument for argument in self.application_args or () if argument]
        with TemporaryDirectory(prefix="lastkey-") as folder:
            path = Path(folder) / "report.json"
            # Not env_vars: with Kubernetes as master they do not reach the launcher.
            with _environment(PATH=f"{launcher}{os.pathsep}{os.environ['PATH']}", LASTKEY_REPORT=str(path)):
                code = self._submit(context)
            report = read_report(path)
        for line in report_lines(report):
            self.log.info("%s", line)
        summary = summarize(report, code)
        if code in self.done:
            return summary
        context["ti"].xcom_push(key="return_value", value=summary)
        message = "\n".join([f"{self.application}: exit code {code}", *summary["findings"]])
        another_try_may_help = code == CONFLICT or code > SIGNAL or code < 0
        raise AirflowException(message) if another_try_may_help else AirflowFailException(message)

    def _submit(self, context: Context) -> int:
        try:
            super().execute(context)
        except AirflowException as error:
            code = re.search(r"Error code is: (-?\d+)\.", str(error))  # the provider gives it nowhere else
            if code is None:
                raise
            return int(code[1])
        return DONE


class AlertOperator(BaseOperator):
    """Operator that tells somebody what the tasks before it found, and then fails: for trigger_rule="all_done", so that
    it can tell of all. If none of them failed it is skipped.

    :param url: gets a POST with JSON: the DAG, the run, and the summary of each task (templated); empty: no request
    """

    template_fields: Sequence[str] = ("url",)

    def __init__(self, *, url: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.url = url

    def execute(self, context: Context) -> None:
        """Post the summaries. Raises AirflowFailException with what failed: a run whose last task succeeds is a
        success to Airflow; AirflowSkipException if nothing did.
        """
        told = {name: context["ti"].xcom_pull(task_ids=name) for name in sorted(self.upstream_task_ids)}
        wrong = {name: summary for name, summary in told.items() if not summary or summary["exit_code"] != DONE}
        if not wrong:
            raise AirflowSkipException("nothing failed")
        lines = [f"{name}: exit code {s['exit_code'] if s else 'unknown'}" for name, s in wrong.items()]
        lines += [f"{name}: {line}" for name, s in wrong.items() if s for line in s["findings"]]
        if self.url:
            body = {"dag": self.dag_id, "run": context["run_id"], "text": "\n".join(lines), "tasks": told}
            request = Request(self.url, json.dumps(body).encode(), {"Content-Type": "application/json"})
            try:
                with urlopen(request, timeout=POST_SECONDS) as answer:
                    self.log.info("posted: %s", answer.status)
            except OSError as error:
                lines.append(f"and the alert could not be posted: {error}")
        raise AirflowFailException("\n".join(lines))


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def read_report(path: Path) -> dict[str, Any]:
    """Return the job's report or error; {} if the file is missing or incomplete, as without Python or after a kill."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the report as lines for the log, one a partition: every line costs a log record."""
    for partition in report.get("partitions", []):
        files = [file for file in _judged_files(partition) if file["status"] != "same" or file["reason"]]
        yield json.dumps({**partition, "files": files} if "files" in partition else partition)
    if report:
        yield json.dumps({name: value for name, value in report.items() if name != "partitions"})


def summarize(report: Mapping[str, Any], code: int) -> dict[str, Any]:
    """Return a summary small enough for an XCom: exit code, totals, and the first findings as text."""
    if "error" in report:
        findings = ["; ".join(filter(None, (report["error"]["message"], report["error"]["hint"])))]
    else:
        findings = [_line(found) for found in _findings(report)]
    return {
        "exit_code": code,
        "totals": report.get("totals") or report.get("checked") or report.get("not_needed") or {},
        "n_findings": len(findings),
        "findings": findings[:LISTED],
    }


def _findings(report: Mapping[str, Any]) -> Iterator[Mapping[str, Any] | str]:
    """Yield problems, then misleading files, rebuilt ones too, with those first that `reindex` cannot rebuild."""
    files = [file for partition in report.get("partitions", []) for file in _judged_files(partition)]
    wrong = [file for file in files if file["status"] != "same" and file["reason"] != "other_entries"]
    told = {path for file in wrong for path in (file["path"], file["log"])}
    yield from (found for found in report.get("problems", []) if isinstance(found, str) or found["path"] not in told)
    yield from sorted(wrong, key=lambda file: file["status"] != "impossible")


def _judged_files(partition: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the files of a partition that `reindex` judged; those of `archive-needed` are names alone."""
    return [file for file in partition.get("files", []) if isinstance(file, Mapping)]


def _line(found: Mapping[str, Any] | str) -> str:
    """Format a finding as `users-0/00000000000000000000.index: differs, wrong, at 8: expected ..., found ...`."""
    if isinstance(found, str):  # problems of `lookup` are text
        return found
    what = [found.get("status"), found.get("reason"), found.get("kind")]
    if found["position"] >= 0:
        what.append(f"at {found['position']}" + (f" of {found['log']}" if found.get("log") else ""))
    both = f": expected {found['expected']}, found {found['found']}" if found["expected"] or found["found"] else ""
    return f"{found['path']}: {', '.join(filter(None, what))}{both}"
