"""Progress of a running job, as it is shown: the bar on a terminal, a line a minute elsewhere, nothing if asked."""

from __future__ import annotations

import logging

import pytest

from lastkey.jobs.command.progress import (
    BYTES,
    Bar,
    CountedBytes,
    Lines,
    LogAboveTheBar,
    PartOf,
    Silent,
    shown_progress,
)
from lastkey.jobs.errors import UsageError


class _Recorded(Silent):
    def __init__(self):
        self.said = []

    def advance(self, n=1):
        self.said.append(n)


def test_progress_counts_bytes_when_read_and_the_rest_at_the_end():
    progress = _Recorded()
    counted = CountedBytes(progress, [50, 30], passes=2)
    counted.read(0, 40)
    counted.read(1, 1)  # half a byte
    PartOf(counted, 1).read(7, 19)
    PartOf(counted, 1).ended(7, None)
    counted.read(0, 1000)  # read once more than was thought
    assert progress.said == [20, 10, 30]
    counted.ended(0)
    counted.ended(1)
    counted.read(1, 60)  # bytes of a task that is no longer needed
    assert progress.said == [20, 10, 30, 20]


def test_progress_logs_one_line_per_minute():
    now, lines = [0.0], []
    shown = Lines(lines.append, lambda: now[0])
    shown.start("compact", 4 << 20, BYTES)
    shown.doing("starting Spark")
    for now[0] in (10.0, 59.0):
        shown.advance(0)
    assert lines == []
    now[0] = 60.0
    shown.advance(1 << 20)
    assert lines == ["compact: 25 %, 1.0 MiB of 4.0 MiB, 1 min 0 s so far, about 3 min 0 s left, starting Spark\n"]
    now[0] = 100.0
    shown.doing("")
    shown.advance(1 << 20)
    assert len(lines) == 1
    now[0] = 125.0
    shown.advance(0)
    assert lines[1:] == ["compact: 50 %, 2.0 MiB of 4.0 MiB, 2 min 5 s so far, about 2 min 5 s left\n"]
    shown.start("vacuum", 3, "folder")
    now[0] = 200.0
    shown.advance()
    shown.close()
    assert lines[2:] == ["vacuum: 33 %, 1 of 3 folders, 1 min 15 s so far, about 2 min 30 s left\n"]


def test_progress_bar_shows_bytes_and_does_not_hide_log_lines(capsys):
    bar = Bar()
    bar.start("compact", 4 << 20, BYTES)
    bar.doing("starting Spark")
    bar.advance(1 << 20)
    bar.doing("committing")
    LogAboveTheBar().emit(logging.makeLogRecord({"msg": "told"}))
    bar.close()
    err = capsys.readouterr().err
    assert "compact:  25%" in err and "1.00M/4.00M" in err and "B/s" in err and "iB" not in err
    assert "starting Spark" in err and "committing" in err
    assert "told\n" in err
    assert err.rstrip(" ").endswith("\r")  # nothing of it is left


def test_quiet_and_verbose_select_the_progress_display():
    log = logging.getLogger("lastkey")
    before = log.level
    try:
        for asked, options, kind, level in (
            (None, {}, Lines, logging.WARNING),  # the tests' stderr is no terminal
            (True, {}, Bar, logging.WARNING),
            (False, {}, Silent, logging.WARNING),
            (None, {"quiet": True}, Silent, logging.WARNING),
            (None, {"verbose": True}, Lines, logging.DEBUG),
        ):
            shown = shown_progress(asked, **({"quiet": False, "verbose": False} | options))
            assert type(shown) is kind
            assert log.level == level
        with pytest.raises(UsageError, match="--quiet"):
            shown_progress(None, quiet=True, verbose=True)
    finally:
        log.setLevel(before)
