"""The commands of docs/tutorial.md in their order, with a broker that a reader would fetch.

The second day's compact runs as a reader types it, on Spark; the other jobs run in this process.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lastkey.jobs.command import cli
from tests.cheap_java import CHEAP
from tests.kafka_lab.jars import lab_jars

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")


@pytest.mark.kafka
@pytest.mark.slow
def test_commands_of_the_tutorial_run(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"<!-- not run: tests/kafka/test_tutorial\.py [^\n]*\n```sh\n(.*?)```", PAGE, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) == 11
    environment = {**os.environ, "LASTKEY_VENV": sys.prefix, "JDK_JAVA_OPTIONS": CHEAP}
    shown = ""
    for line in lines:
        words = [re.sub(r"^work/", f"{tmp_path}/", word) for word in shlex.split(line)]
        words = [sys.executable if word in ("python3", ".venv/bin/python") else word for word in words]
        if words[0] == "./spark-submit.sh" and not (words[1] == "compact" and "needed" in shown):
            assert cli.main(words[1:]) == 0, (line, capsys.readouterr())
            shown += capsys.readouterr().out
            continue
        if "broker" in words:
            words += ["--jars", str(lab_jars())]
        completed = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert completed.returncode == 0, (line, completed.stdout, completed.stderr)
        shown += completed.stdout
    for claim in re.findall(r"^(?:\S+-\d: a consumer .*|\d+ segments, .* needed)", PAGE, re.MULTILINE):
        assert claim in shown
