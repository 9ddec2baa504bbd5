"""Commands that fail: exit code, the one line of the error, and the same as JSON."""

from __future__ import annotations

import json
import time
from typing import Any, Final

import pytest

from lastkey.jobs.command.cli import main

SECONDS: Final = 20.0  # time limit for the report of an unusable bucket


def run_failing(
    capsys: pytest.CaptureFixture[str], *words: str, seconds: float = SECONDS
) -> tuple[int, str, dict[str, Any]]:
    """Run a command that fails within these seconds."""
    started = time.monotonic()
    code = main([*words, "--json"])
    assert time.monotonic() - started < seconds
    out, err = capsys.readouterr()
    [line] = err.splitlines()
    assert "\x1b" not in err and "Traceback" not in err and "report this" not in err
    return code, line, json.loads(out)["error"]
