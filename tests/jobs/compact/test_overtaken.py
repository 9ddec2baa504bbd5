"""A run that detects another one too late: it has planned when the other commits and ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lastkey.jobs.command import cli
from lastkey.jobs.errors import DONE
from tests.builders.logs import write_partition
from tests.builders.steps import at_step


def test_outdated_plan_is_replaced_before_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run must notice that another run overtook it. Without the check it finishes its work and then loses it with
    exit code 4, also with --wait.
    """
    write_partition(tmp_path / "archive" / "t-0", "a=1 || a=2 || b=3")
    words = ["compact", str(tmp_path / "archive"), "--store", str(tmp_path / "store"), "--topics", "t"]
    words += ["--cleanup-policy", "compact", "--json", "--force"]

    def overtake() -> None:
        assert cli.main(words) == DONE
        capsys.readouterr()

    with at_step("partitions planned", overtake):
        assert cli.main([*words, "--wait"]) == DONE
    report = json.loads(capsys.readouterr().out)
    assert (report["conflict"], [p["generation"] for p in report["partitions"]]) == (None, [2])
