"""The examples of schedules: systemd takes its units; Kubernetes' job and the container's file name what exists."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from lastkey.jobs import errors
from lastkey.jobs.command import cli
from lastkey.jobs.spark.submit import split_arguments

ROOT = Path(__file__).resolve().parents[2]
SYSTEMD, KUBERNETES = ROOT / "examples/systemd", ROOT / "examples/kubernetes"
AGAIN = {errors.CONFLICT, errors.ENVIRONMENT}
NEVER_AGAIN = {errors.UNEXPECTED, errors.USAGE, errors.PROBLEMS}


def checked_words(words: list[str]) -> dict[str, Any]:
    """Return the options of `compact` as the command line reads them, after those of Spark."""
    _, (job, *rest) = split_arguments(words)
    assert job == "compact"
    command = cli.lastkey.commands[job]
    return command.make_context(job, rest, parent=click.Context(cli.lastkey)).params


def read_settings(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def systemd_analyze() -> str:
    """Return the path of systemd-analyze; install it as root on Debian, else say what to install."""
    program = shutil.which("systemd-analyze")
    if program is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in ("apt-get update -q", "apt-get install -y --no-install-recommends systemd"):
            subprocess.run(command.split(), stdin=subprocess.DEVNULL, capture_output=True, check=True)
        program = shutil.which("systemd-analyze")
    assert program is not None, "this test needs systemd-analyze: apt install systemd"
    return program


@pytest.mark.slow
def test_systemd_accepts_the_units(tmp_path):
    for unit in SYSTEMD.glob("lastkey-compact.*"):
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/lastkey", str(ROOT)))
    command = [systemd_analyze(), "verify", "--man=no", "--recursive-errors=no", *map(str, sorted(tmp_path.iterdir()))]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "", "")
    (tmp_path / "lastkey-compact.service").write_text(
        "[Service]\nType=oneshot\nExecStart=/no/such/program\nRestrat=no\n"
    )
    wrong = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Restrat" in wrong.stderr and "/no/such/program" in wrong.stderr, "it does look"
    calendar = read_settings(SYSTEMD / "lastkey-compact.timer")["OnCalendar"]
    subprocess.run([systemd_analyze(), "calendar", calendar], capture_output=True, check=True)


def test_systemd_unit_restarts_after_retryable_exit_codes():
    unit = read_settings(SYSTEMD / "lastkey-compact.service")
    script, *words = unit["ExecStart"].split()
    assert script == "/opt/lastkey/spark-submit.sh"
    options = checked_words(words)
    assert unit["ReadOnlyPaths"] == options["archive"] and options["store"].startswith(f"{unit['ReadWritePaths']}/")
    assert (unit["Restart"], {int(code) for code in unit["RestartPreventExitStatus"].split()}) == (
        "on-failure", NEVER_AGAIN,
    )  # fmt: skip
    assert unit["SuccessExitStatus"].split() == [str(errors.PARTIAL), str(128 + signal.SIGTERM)]


def test_cron_job_retries_after_retryable_exit_codes():
    job = yaml.safe_load((KUBERNETES / "compact.yaml").read_text())
    assert (job["apiVersion"], job["kind"], job["spec"]["concurrencyPolicy"]) == ("batch/v1", "CronJob", "Forbid")
    spec = job["spec"]["jobTemplate"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
    options = checked_words(container["args"])
    assert mounts[options["archive"]] is True and mounts[options["store"]] is False
    assert str(Path(options["config"]).parent) in mounts
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    (rule,) = [rule for rule in spec["podFailurePolicy"]["rules"] if rule["action"] == "FailJob"]
    assert rule["onExitCodes"] == {"containerName": container["name"], "operator": "In", "values": sorted(NEVER_AGAIN)}
    assert not AGAIN & set(rule["onExitCodes"]["values"]) and spec["backoffLimit"] > 0
    assert pod["restartPolicy"] == "Never"


def test_container_has_everything_that_the_package_requires():
    """The image copies every folder that `lastkey` and Spark's data sources need, and only existing ones."""
    text = (KUBERNETES / "Containerfile").read_text()
    copied = {name for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE) for name in line.split()[:-1]}
    assert all((ROOT / name).exists() for name in copied)
    needed = {"lastkey", "jobs", "udfs", "logformat", "conf", "requirements", "spark-submit.sh", "pyproject.toml"}
    assert copied == needed | {"examples/archive"} | {path.name for path in ROOT.glob("pyspark_kafka_log*.py")}
    user = re.search(r"--uid (\d+)", text)
    assert user is not None and f"\nUSER {user[1]}\n" in text
    job = yaml.safe_load((KUBERNETES / "compact.yaml").read_text())
    assert job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == int(user[1])
