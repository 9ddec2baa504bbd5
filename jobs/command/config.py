"""Settings: one TOML file with Kafka's own names, parsed into frozen dataclasses.

    [defaults]             for every topic
    [topics."orders-*"]    for the topics that a glob names: an exact name wins over globs, a later glob over an earlier
    [job]                  for speed and memory, never the result
    [made]                 of which state of a cluster `policies` made the file; nothing to set

Each setting is declared once, below: name, type, default, allowed values. `conf/cleaner.toml` says what each does.
"""

from __future__ import annotations

import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from lastkey.jobs.command.parse import MAX_LONG, nearest, read_given
from lastkey.jobs.errors import BAD_NOW, BAD_SETTING, CONFIG_FILE, UNKNOWN_SETTING, UsageError
from lastkey.jobs.topics import matches

MAX_INT = 2**31 - 1
NullKeys = Literal["fail", "keep", "drop"]
NULL_KEYS: tuple[NullKeys, ...] = ("fail", "keep", "drop")
Gaps = Literal["fail", "accept"]
GAPS: tuple[Gaps, ...] = ("fail", "accept")
STRATEGIES = ("offset", "timestamp", "header")
SCHEDULES = ("full", "yield")
Engine = Literal["spark", "threads", "auto"]
ENGINES: tuple[Engine, ...] = ("spark", "threads", "auto")
SPLITS = ("auto", "none", "always")
SplitBy = Literal["auto", "none", "always"]
POLICIES = ("compact", "delete")
_CLOCK = "epoch milliseconds"
LEAST_INDEX_BYTES = 12  # Kafka allows 4, too small for one entry of a time index: ours always has a segment's last one


class _BadValueError(ValueError):
    """Bad value; its text says which values are allowed."""


def _integer(low: int, high: int) -> Callable[[object], int]:
    def check(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise _BadValueError(f"a whole number from {low} to {high}")
        return value

    return check


def _true_or_false(value: object) -> bool:
    if not isinstance(value, bool):
        raise _BadValueError("true or false")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _BadValueError("text")
    return value


def _ratio(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise _BadValueError("a number from 0 to 1")
    return float(value)


def _policy(value: object) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    allowed = 'a list of "compact" and "delete", such as "compact,delete"'
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise _BadValueError(allowed)
    names = [name.strip() for name in names]
    if set(names) - set(POLICIES) or len(set(names)) != len(names):
        raise _BadValueError(allowed)
    return tuple(sorted(names))


def _one_of(names: tuple[str, ...]) -> Callable[[object], str]:
    def check(value: object) -> str:
        if value not in names:
            raise _BadValueError("one of " + ", ".join(f'"{name}"' for name in names))
        return str(value)

    return check


@dataclass(frozen=True)
class TopicSettings:
    """Settings that decide a topic's result, in snake case. `named`: its own table set cleanup.policy."""

    cleanup_policy: tuple[str, ...] = ("delete",)
    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = MAX_LONG
    min_cleanable_dirty_ratio: float = 0.5
    min_dirty_bytes: int = 0
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    time_index_interval_ms: int = 0
    producer_id_expiration_ms: int = 86_400_000
    retention_ms: int = -1
    retention_bytes: int = -1
    retention_exact: bool = False
    compaction_strategy: str = "offset"
    compaction_strategy_header: str = ""
    compaction_schedule: str = "full"
    compaction_min_yield: float = 0.2
    compaction_full_ms: int = 30 * 86_400_000
    null_keys: str = "fail"
    gaps: str = "fail"
    max_decompressed_batch_bytes: int = 256 << 20
    named: bool = False

    @property
    def compacts(self) -> bool:
        """True if cleanup.policy has compact."""
        return "compact" in self.cleanup_policy

    @property
    def expires(self) -> bool:
        """True if cleanup.policy has delete."""
        return "delete" in self.cleanup_policy

    @property
    def has_limit(self) -> bool:
        """True if a retention limit is set; it applies if the policy has delete."""
        return max(self.retention_ms, self.retention_bytes) >= 0

    @property
    def acts(self) -> bool:
        """True if there is work to do: compaction, or retention with a limit."""
        return self.compacts or (self.expires and self.has_limit)


@dataclass(frozen=True)
class JobSettings:
    """Settings that change only speed and memory."""

    wave_partitions: int = 64
    wave_minutes: int = 10
    split_bytes: int = 4 << 30
    task_memory_bytes: int = 1 << 30
    chunk_bytes: int = 8 << 20
    engine: Engine | Literal["default"] = "default"  # of each command
    spark_from_bytes: int = 8 << 30
    split_by: SplitBy = "auto"
    max_bytes_per_second: int = 0


# Kafka's ranges (TopicConfig, LogConfig of 4.3); segment.bytes goes below Kafka's 1 MiB, as internal.segment.bytes does
TOPIC_CHECKS: dict[str, Callable[[object], Any]] = {
    "cleanup.policy": _policy,
    "delete.retention.ms": _integer(0, MAX_LONG),
    "min.compaction.lag.ms": _integer(0, MAX_LONG),
    "max.compaction.lag.ms": _integer(1, MAX_LONG),
    "min.cleanable.dirty.ratio": _ratio,
    "min.dirty.bytes": _integer(0, MAX_LONG),
    "segment.bytes": _integer(14, MAX_INT),
    "segment.index.bytes": _integer(4, MAX_INT),
    "index.interval.bytes": _integer(0, MAX_INT),
    "time.index.interval.ms": _integer(0, MAX_LONG),
    "producer.id.expiration.ms": _integer(1, MAX_INT),
    "retention.ms": _integer(-1, MAX_LONG),
    "retention.bytes": _integer(-1, MAX_LONG),
    "retention.exact": _true_or_false,
    "compaction.strategy": _one_of(STRATEGIES),
    "compaction.strategy.header": _text,
    "compaction.schedule": _one_of(SCHEDULES),
    "compaction.min.yield": _ratio,
    "compaction.full.ms": _integer(0, MAX_LONG),
    "null.keys": _one_of(NULL_KEYS),
    "gaps": _one_of(GAPS),
    "max.decompressed.batch.bytes": _integer(1 << 20, MAX_INT),
}
JOB_CHECKS: dict[str, Callable[[object], Any]] = {
    "wave.partitions": _integer(1, 100_000),
    "wave.minutes": _integer(1, 1440),
    "split.bytes": _integer(1, MAX_LONG),
    "task.memory.bytes": _integer(64 << 20, MAX_LONG),
    "chunk.bytes": _integer(64 << 10, 1 << 30),
    "engine": _one_of(("default", *ENGINES)),
    "spark.from.bytes": _integer(0, MAX_LONG),
    "split.by": _one_of(SPLITS),
    "max.bytes.per.second": _integer(0, MAX_LONG),
}
MADE_CHECKS: dict[str, Callable[[object], Any]] = {"time_ms": _integer(0, MAX_LONG), "offset": _integer(0, MAX_LONG)}
TABLES = ("defaults", "topics", "job", "made")


def _attribute(setting: str) -> str:
    return setting.replace(".", "_")


@dataclass(frozen=True)
class ClusterState:
    """State of a cluster that `policies` took a settings file from; -1: not known."""

    time_ms: int = -1
    offset: int = -1  # of __cluster_metadata: the first that is not in it


@dataclass(frozen=True)
class Config:
    """Settings of one run: tables as they stand in the file, already checked."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    topics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    job: JobSettings = field(default_factory=JobSettings)
    path: str = ""
    made: ClusterState | None = None

    def topic_settings(self, topic: str) -> TopicSettings:
        """Return the settings of one topic: defaults, then the globs that match it in the file's order, then its exact
        name. Raises BAD_SETTING for settings that contradict each other.
        """
        values = dict(self.defaults)
        named = False
        globs = [glob for glob in self.topics if glob != topic and matches(glob, topic)]
        for glob in [*globs, *([topic] if topic in self.topics else [])]:
            values |= self.topics[glob]
            named = named or "cleanup_policy" in self.topics[glob]
        settings = TopicSettings(**values, named=named)
        self._check_retention(topic, settings)
        self._check_strategy(topic, settings)
        if settings.min_compaction_lag_ms > settings.max_compaction_lag_ms:  # Kafka refuses this too
            raise BAD_SETTING(
                path=self.path or "settings",
                table=f"topic {topic}",
                setting="min.compaction.lag.ms",
                expected=f"at most max.compaction.lag.ms ({settings.max_compaction_lag_ms})",
                found=settings.min_compaction_lag_ms,
            )
        return replace(settings, segment_index_bytes=max(settings.segment_index_bytes, LEAST_INDEX_BYTES))

    def _check_strategy(self, topic: str, settings: TopicSettings) -> None:
        """Raise BAD_SETTING unless a header is named if, and only if, the strategy needs one."""
        named = bool(settings.compaction_strategy_header)
        if named != (settings.compaction_strategy == "header"):
            raise BAD_SETTING(
                path=self.path or "settings",
                table=f"topic {topic}",
                setting="compaction.strategy.header",
                expected="none" if named else "the name of the header that holds the version",
                found=f"{settings.compaction_strategy_header!r}, with strategy {settings.compaction_strategy}",
            )

    def _check_retention(self, topic: str, settings: TopicSettings) -> None:
        """Raise BAD_SETTING if a table limits what its policy keeps; [defaults] may, as other topics use them."""
        if settings.retention_exact and settings.expires and settings.retention_ms < 0:
            raise BAD_SETTING(
                path=self.path or "settings",
                table=f"topic {topic}",
                setting="retention.exact",
                expected="a retention.ms of 0 or more",
                found=f"true, with retention.ms {settings.retention_ms}",
            )
        lag = settings.min_compaction_lag_ms
        if settings.retention_exact and settings.expires and settings.compacts and lag > settings.retention_ms:
            raise BAD_SETTING(
                path=self.path or "settings",
                table=f"topic {topic}",
                setting="retention.exact",
                expected=f"min.compaction.lag.ms of at most retention.ms ({settings.retention_ms}), because records "
                "within the lag are kept",
                found=f"true, with min.compaction.lag.ms {lag}",
            )
        for glob, table in self.topics.items():
            for name, none in (("retention_ms", -1), ("retention_bytes", -1), ("retention_exact", False)):
                if not settings.expires and matches(glob, topic) and table.get(name, none) > none:
                    raise BAD_SETTING(
                        path=self.path or "settings",
                        table=f"topic {topic}",
                        setting=name.replace("_", "."),
                        expected="delete in cleanup.policy",
                        found=f"{table[name]}, with cleanup.policy {','.join(settings.cleanup_policy)}",
                    )


def load_config(path: str | Path | None) -> Config:
    """Read and check a settings file; None gives the defaults."""
    if path is None:
        return Config()
    name = str(path)
    text = read_given(name, "a TOML file of settings")
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise CONFIG_FILE(path=name, expected="TOML", found=_where(text, str(error))) from error
    return parse_config(tables, name)


def _where(text: str, said: str) -> str:
    """Return tomllib's message, with line and column instead of "at end of document"."""
    lines = text.splitlines() or [""]
    while len(lines) > 1 and not lines[-1].strip():
        lines.pop()
    return said.replace("at end of document", f"at line {len(lines)}, column {len(lines[-1]) + 1}, the end")


def parse_config(tables: Mapping[str, Any], path: str = "settings") -> Config:
    """Check parsed TOML tables, and return them as settings."""
    for table, content in tables.items():
        if table not in TABLES:
            raise UNKNOWN_SETTING(path=path, table="top level", found=table, near=nearest(table, TABLES))
        if not isinstance(content, dict):
            raise BAD_SETTING(path=path, table="top level", setting=table, expected="a table", found=content)
    topics = {}
    for glob, content in tables.get("topics", {}).items():
        if not isinstance(content, dict):
            raise BAD_SETTING(path=path, table="[topics]", setting=glob, expected='[topics."GLOB"]', found=content)
        topics[glob] = _check(content, TOPIC_CHECKS, path, f'[topics."{glob}"]')
    defaults = _check(tables.get("defaults", {}), TOPIC_CHECKS, path, "[defaults]")
    job = JobSettings(**_check(tables.get("job", {}), JOB_CHECKS, path, "[job]"))
    made = ClusterState(**_check(tables["made"], MADE_CHECKS, path, "[made]")) if "made" in tables else None
    config = Config(defaults, topics, job, path, made)
    for name in ("", *topics):  # find contradictions between settings now, not at the first topic that has one
        config.topic_settings(name)
    return config


def _check(
    content: Mapping[str, object], checks: Mapping[str, Callable[[object], Any]], path: str, table: str
) -> dict[str, Any]:
    checked = {}
    for setting, value in _flatten(content).items():
        if setting not in checks:
            raise UNKNOWN_SETTING(path=path, table=table, found=setting, near=nearest(setting, checks))
        try:
            checked[_attribute(setting)] = checks[setting](value)
        except _BadValueError as error:
            raise BAD_SETTING(path=path, table=table, setting=setting, expected=error, found=repr(value)) from None
    return checked


def _flatten(content: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return settings with dotted names: TOML parses unquoted ones (segment.bytes = 1) as nested tables."""
    flat: dict[str, object] = {}
    for key, value in content.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def check_now_ms(now_ms: int | None) -> int:
    """Return --now in epoch milliseconds, or the clock's. Raise BAD_NOW for a value in seconds or microseconds."""
    if now_ms is None:
        return time.time_ns() // 1_000_000
    if 0 <= now_ms < 10**11:  # 10^11 ms is March 1973; 10^11 s is the year 5138
        raise BAD_NOW(expected=_CLOCK, found=f"{now_ms}: seconds", advice=f"did you mean {now_ms * 1000}?")
    if not 0 <= now_ms < 10**14:  # the year 5138
        raise BAD_NOW(expected=_CLOCK, found=now_ms, advice="without this option the clock is the current time")
    return now_ms


def check_policy_has_topics(cleanup_policy: str | None, *topics: str) -> None:
    """Raise UsageError for a --cleanup-policy without topics to apply it to."""
    if cleanup_policy and not topics:
        raise UsageError(
            message="--cleanup-policy compact needs --topics or --topics-from, which name the topics it applies to"
        )
