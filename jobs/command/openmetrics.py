"""Metrics of runs as text: by the rules of OpenMetrics, and such that node_exporter's textfile collector takes it too.

So every metric is a gauge that describes the last run, has no timestamp of its own, and each family appears once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

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
    told = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(labels.items()) if value)
    return f"{name}{{{told}}}" if told else name


def _head(name: str) -> Sequence[str]:
    unit = name.rpartition("_")[2]
    units = [f"# UNIT {name} {unit}"] if unit in _UNITS else []
    return (f"# TYPE {name} gauge", *units, f"# HELP {name} {FAMILIES[name]}")


def _escaped(value: str) -> str:
    """Escape a label's value; lone surrogates, of names that are no text, become question marks."""
    plain = value.encode("utf-8", "replace").decode()
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
