"""Notification of a command's end: metrics in a file, and a POST to a URL.

Both come last, when the report is printed. A failure of either is a note on stderr; the exit code is that of the run.
Metrics follow the rules of OpenMetrics, and are such that node_exporter's textfile collector takes them too: every
metric is a gauge that describes the last run, has no timestamp of its own, and each family appears once.
"""

from __future__ import annotations

import json
import socket
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from lastkey.jobs import installation
from lastkey.jobs.command.reporting import JobReport
from lastkey.jobs.command.stopping import EarlyEndError, within
from lastkey.jobs.command.whole_file import METRICS, check_file, whole_file
from lastkey.jobs.errors import DONE, JobError

LAST_SUCCESS: Final = "lastkey_last_success_timestamp_seconds"
_RUN: Final = "lastkey_run_"
Labels = Mapping[str, str]
# name -> help. A name that ends with a unit of OpenMetrics has that unit
FAMILIES: Final = {
    LAST_SUCCESS: "End of the last run with exit code 0.",
    f"{_RUN}start_timestamp_seconds": "Start of the last run.",
    f"{_RUN}end_timestamp_seconds": "End of the last run.",
    f"{_RUN}duration_seconds": "Duration of the last run.",
    f"{_RUN}exit_code": "Exit code of the last run; -1: its process was killed.",
    f"{_RUN}due_partitions": "Partitions that were due.",
    f"{_RUN}committed_partitions": "Partitions with a new generation.",
    f"{_RUN}partitions": "Partitions by what the run did with them, or by the state of their problem.",
    f"{_RUN}problems": "Problems by kind.",
    f"{_RUN}read_bytes": "Bytes that were read.",
    f"{_RUN}written_bytes": "Bytes of logs that were written.",
    f"{_RUN}before_bytes": "Bytes of the committed partitions' logs before the run.",
    f"{_RUN}after_bytes": "Bytes of the committed partitions' logs after the run.",
    f"{_RUN}saved_bytes": "Bytes by which the committed partitions' logs became smaller.",
    f"{_RUN}deleted_bytes": "Bytes of files that were deleted.",
    f"{_RUN}deleted_files": "Files that were deleted.",
    f"{_RUN}read_records": "Records that were read.",
    f"{_RUN}kept_records": "Records that were kept.",
    "lastkey_lag_partitions": "Partitions of the archive that hold something no cleaning has reached.",
    "lastkey_lag_bytes": "Bytes of archived segments that no cleaning has reached the end of.",
    "lastkey_lag_offsets": "Offsets of the archive that no cleaning has reached.",
    "lastkey_lag_oldest_timestamp_seconds": "File time of the oldest segment that no cleaning has reached the end of.",
}
_UNITS: Final = ("bytes", "seconds")
_BY: Final = {"partitions": "state", "problems": "kind"}  # label of a figure that counts by it
_PLAIN: Final = tuple(
    name.removeprefix(_RUN)
    for name in FAMILIES
    if name.startswith(_RUN) and not name.endswith(("_seconds", "exit_code", *(f"{_RUN}{by}" for by in _BY)))
)
_LAG: Final = ("partitions", "bytes", "offsets")


@dataclass(frozen=True)
class RunMetrics:
    """Run whose metrics are written. figures: those of its report, by name."""

    labels: Labels
    started_ms: int
    ended_ms: int
    exit_code: int
    last_success: float | None  # seconds since 1970
    figures: Mapping[str, Any] = field(default_factory=dict)

    def samples(self) -> Iterator[tuple[str, Labels, float]]:
        """Yield family, labels and value of each sample."""
        seconds = {"start": self.started_ms / 1000, "end": self.ended_ms / 1000}
        if self.last_success is not None:
            yield LAST_SUCCESS, self.labels, self.last_success
        for what, value in seconds.items():
            yield f"{_RUN}{what}_timestamp_seconds", self.labels, value
        yield f"{_RUN}duration_seconds", self.labels, max(self.ended_ms - self.started_ms, 0) / 1000
        yield f"{_RUN}exit_code", self.labels, self.exit_code
        for figure, by in _BY.items():
            for what, n in self.figures.get(figure, {}).items():
                yield f"{_RUN}{figure}", {**self.labels, by: what}, n
        for name in _PLAIN:
            if name in self.figures:
                yield f"{_RUN}{name}", self.labels, self.figures[name]
        lag = self.figures.get("lag") or {}
        for name in _LAG:
            if name in lag:
                yield f"lastkey_lag_{name}", self.labels, lag[name]
        if lag.get("oldest_ms"):
            yield "lastkey_lag_oldest_timestamp_seconds", self.labels, lag["oldest_ms"] / 1000


def openmetrics(runs: Iterable[RunMetrics]) -> str:
    """Return the metrics of runs, whose labels differ."""
    of_family: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for run in runs:
        for name, labels, value in run.samples():
            of_family[name].append(f"{sample_key(name, labels)} {value:.15g}")
    out = [line for name, samples in of_family.items() if samples for line in (*_head(name), *samples)]
    return "\n".join([*out, "# EOF", ""])


def sample_key(name: str, labels: Labels) -> str:
    """Return a sample's name and labels."""
    pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(labels.items()) if value)
    return f"{name}{{{pairs}}}" if pairs else name


def _head(name: str) -> Sequence[str]:
    unit = name.rpartition("_")[2]
    units = [f"# UNIT {name} {unit}"] if unit in _UNITS else []
    return (f"# TYPE {name} gauge", *units, f"# HELP {name} {FAMILIES[name]}")


def _escaped(value: str) -> str:
    """Escape a label's value; lone surrogates, of names that are no text, become question marks."""
    plain = value.encode("utf-8", "replace").decode()
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


PATIENCE: Final = 10.0  # time limit of a post, in seconds
MOST_BYTES: Final = 64 << 10  # limit for a post
_MOST_LINES, _MOST_TEXT = 20, 300  # problems and notes of a post, characters of each
_MOST_READ: Final = 1 << 20  # bytes of the existing metrics file


@dataclass
class Ending:
    """Receivers of a command's end, and the facts that they get."""

    metrics_file: str | None = None
    notify: str | None = None
    context: click.Context | None = None  # context of the command: its name and parameters
    report: JobReport | None = None
    error: str = ""
    started_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    def check_metrics_file(self) -> None:
        """Raise UsageError if the metrics file may not be written (`check_file`): it is not written at the end then."""
        path, given = self.metrics_file, self.context.params if self.context is not None else {}
        if path is not None:
            self.metrics_file = None
            archives = given.get("archive"), given.get("archive_moved")
            check_file("--metrics-file", str(Path(path).absolute()), METRICS, archives, [given.get("store")])
            self.metrics_file = path

    def report_end(self, exit_code: int) -> list[str]:
        """Notify all receivers; return a note for each failure."""
        notes: list[str] = []
        if self.context is not None and (self.metrics_file or self.notify):
            try:
                notes += filter(None, (self._write_metrics(exit_code), self._post(exit_code)))
            except (KeyboardInterrupt, EarlyEndError):  # the run is over: its exit code stays
                notes.append("stopped before all receivers were notified of the end")
        return notes

    def _labels(self) -> dict[str, str]:
        given = self.context.params if self.context is not None else {}
        places = {name: given.get(name) for name in ("archive", "store")}
        command = self.context.info_name if self.context is not None else ""
        return {"command": command or "", **{name: str(value) for name, value in places.items() if value}}

    def _write_metrics(self, exit_code: int) -> str:
        if self.metrics_file is None:
            return ""
        labels, ended_ms = self._labels(), time.time_ns() // 1_000_000
        path = Path(self.metrics_file)
        try:
            self.check_metrics_file()  # again: a run takes a while
            success = ended_ms / 1000 if exit_code == DONE else _last_success(path, labels)
            figures = self.report.figures() if self.report is not None else {}
            run = RunMetrics(labels, self.started_ms, ended_ms, exit_code, success, figures)
            # the collector reads *.prom alone, and so not the part
            with whole_file(path, METRICS, "--metrics-file") as part:
                part.write(openmetrics([run]).encode())
        except OSError as error:
            return f"--metrics-file {path}: not written: {error.strerror or error}"
        except JobError as error:
            return f"not written: {error.line()}"
        return ""

    def _post(self, exit_code: int) -> str:
        if self.notify is None:
            return ""
        url, body = self.notify, self._body(exit_code)
        failed = within(PATIENCE, lambda: _posted(url, body), "notify")
        return failed and f"--notify {_place(url)}: {failed}"

    def _body(self, exit_code: int) -> bytes:
        """Return the summary that is posted; without problems and notes if these are too long."""
        report = self.report
        problems: list[Any] = getattr(report, "problems", [])
        facts = {
            **self._labels(),
            "exit_code": exit_code,
            "error": self.error[:_MOST_TEXT],
            "host": socket.gethostname(),
            "version": installation.version(),
            "started_ms": self.started_ms,
            "ended_ms": time.time_ns() // 1_000_000,
            "figures": report.figures() if report is not None else {},
        }
        lines = {
            "problems": [str(problem)[:_MOST_TEXT] for problem in problems[:_MOST_LINES]],
            "notes": [note[:_MOST_TEXT] for note in (report.notes if report is not None else [])[:_MOST_LINES]],
        }
        body = json.dumps(facts | lines).encode()
        return body if len(body) <= MOST_BYTES else json.dumps(facts | {"problems": [], "notes": []}).encode()


def _place(url: str) -> str:
    """Return scheme, host and port: the rest of a URL may be secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")


def _posted(url: str, body: bytes) -> str:
    """Post, and return why that failed; "" if it did not. A redirect is not followed: it could lead anywhere."""
    from urllib import error, request  # noqa: PLC0415 - brings ssl

    class _NoRedirect(request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    asked = request.Request(url, body, {"Content-Type": "application/json", "User-Agent": "lastkey"}, method="POST")
    try:
        with request.build_opener(_NoRedirect).open(asked, timeout=PATIENCE):
            return ""
    except error.HTTPError as answer:
        answer.close()
        return f"answered {answer.code}" + (", a redirect, which is not followed" if 300 <= answer.code < 400 else "")
    except error.URLError as failed:
        return str(getattr(failed.reason, "strerror", None) or failed.reason)
    except Exception as failed:  # http.client's errors may repeat what was sent: report only the name
        return type(failed).__name__


def _last_success(path: Path, labels: dict[str, str]) -> float | None:
    """Return the time of the last success in the existing metrics file; None if the file has none."""
    key = sample_key(LAST_SUCCESS, labels) + " "
    with suppress(OSError, ValueError):
        if stat.S_ISREG(path.stat().st_mode):
            with path.open("rb") as file:
                lines = file.read(_MOST_READ).decode("utf-8", "replace").splitlines()
            return next((float(line.removeprefix(key)) for line in lines if line.startswith(key)), None)
    return None
