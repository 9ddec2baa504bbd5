"""The runner of the attacks: it finds a case that hangs, and tolerates a case that a busy machine lets wait."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.attack import forked


def _in_turns() -> None:
    """Work a little now and then, as on a busy machine."""
    for _ in range(25):
        time.sleep(0.1)
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass


def _for_ever() -> None:
    while True:
        pass


WORK = {"in turns": _in_turns, "for ever": _for_ever, "asleep": threading.Event().wait, "at once": lambda: None}


@pytest.mark.slow
def test_hang_is_detected_by_cpu_time_and_not_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "HANG_SECONDS", 2.0)

    def work(case: str) -> str:
        WORK[case]()
        return "done"

    tried = forked.try_all(list(WORK), work, ("done",), 1 << 30, tmp_path)
    assert [name for name, _ in tried.failures] == ["for ever", "asleep"]
    assert (tried.hangs, tried.counts) == (2, {"done": 2})
