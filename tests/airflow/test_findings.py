"""The operator's reading of reports of jobs other than the example's, without an Airflow."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lastkey.jobs.command import cli
from tests.builders.logs import write_partition

OPERATOR = Path(__file__).resolve().parents[2] / "examples" / "airflow" / "dags" / "lastkey_operator.py"
Summarize = Callable[[Mapping[str, Any], int], dict[str, Any]]


@pytest.fixture
def summarize(monkeypatch: pytest.MonkeyPatch) -> Summarize:
    """Return the operator's function, imported with stand-ins for Airflow's classes."""
    names = (
        "BaseOperator", "SparkSubmitOperator", "AirflowException", "AirflowFailException", "AirflowSkipException",
    )  # fmt: skip
    module = ModuleType("airflow")
    for name in names:
        setattr(module, name, type(name, (), {"template_fields": ()}))
    for path in ("providers.apache.spark.operators.spark_submit", "sdk", "sdk.exceptions"):
        monkeypatch.setitem(sys.modules, f"airflow.{path}", module)
    spec = importlib.util.spec_from_file_location("lastkey_operator", OPERATOR)
    assert spec is not None
    assert spec.loader is not None
    operator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(operator)
    found: Summarize = operator.summarize
    return found


@pytest.mark.parametrize(
    "words",
    [
        ["compact", "ARCHIVE", "--store", "STORE", "--topics", "t", "--cleanup-policy", "compact", "--sealed"],
        ["verify", "ARCHIVE", "--sealed"],
        ["reindex", "ARCHIVE", "--check"],
        ["lookup", "ARCHIVE", "--time", "0"],
        ["lookup", "ARCHIVE", "--sizing"],
        ["report", "ARCHIVE", "--output", "PAGE", "--topics", "t", "--cleanup-policy", "compact"],
    ],
    ids=lambda words: " ".join(words[:3:2]),
)
def test_a_report_of_any_job_with_exit_code_3_has_findings(
    words: list[str], summarize: Summarize, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_partition(tmp_path / "archive" / "t-0", "a=1 b=1 | a=2")
    (log,) = (tmp_path / "archive" / "t-0").glob("*.log")
    log.write_bytes(log.read_bytes()[:8] + b"\0\0\0\1" + log.read_bytes()[12:])
    places = {
        "ARCHIVE": str(tmp_path / "archive"), "STORE": str(tmp_path / "store"), "PAGE": str(tmp_path / "page.html"),
    }  # fmt: skip
    assert cli.main([*(places.get(word, word) for word in words), "--json"]) == 3
    summary = summarize(json.loads(capsys.readouterr().out), 3)
    assert summary["n_findings"] >= 1
    assert log.name in summary["findings"][0]
