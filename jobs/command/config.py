"""Settings: one TOML file with Kafka's own names, parsed into frozen dataclasses.

    [defaults]             for every topic
    [topics."orders-*"]    for the topics that a glob names: an exact name has priority over globs, a later glob over an
                           earlier one
    [job]                  for speed and memory, never the result
    [made]                 state of a cluster from which `policies` made the file; no settings

Each setting is one field below: name, unit, allowed values, default, and its documentation, of which
`docs.option_tables` makes `conf/cleaner.toml` and the reference page. `--set` overrides a setting for one run.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from lastkey.jobs.command.declare import Value, ValueKind, declared, declared_values, setting
from lastkey.jobs.command.kinds import ENGINE, FLAG, TEXT, Engine, Location, check_each, choice, number, real
from lastkey.jobs.command.parse import MAX_LONG, check_location, nearest, read_given
from lastkey.jobs.errors import BAD_NOW, BAD_SETTING, CONFIG_FILE, UNKNOWN_SETTING, UsageError
from lastkey.jobs.topics import matches

MAX_INT: Final = 2**31 - 1
NullKeys = Literal["fail", "keep", "drop"]
Gaps = Literal["fail", "accept"]
Strategy = Literal["offset", "timestamp", "header"]
Schedule = Literal["full", "yield"]
SplitBy = Literal["auto", "none", "always"]
CompressionType = Literal["producer", "none", "gzip", "snappy", "lz4", "zstd"]
POLICIES: Final = ("compact", "delete")
LEAST_INDEX_BYTES: Final = 12  # Kafka allows 4, less than the entry that our time indexes always have
_CLOCK: Final = "epoch milliseconds"
Whole = Value[int, int]
Real = Value[float, float]


def _policy(setting: Value[Any, Any], value: object) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise setting.wrong_type(_POLICY, value)
    names = [name.strip() for name in names]
    if set(names) - set(POLICIES) or len(set(names)) != len(names):
        raise setting.wrong(_POLICY, repr(value))
    return tuple(sorted(names))


_POLICY: Final = 'a list of "compact" and "delete", such as "compact,delete"'
POLICY: Final[ValueKind[str | Iterable[str], tuple[str, ...]]] = ValueKind(_policy, allowed=_POLICY)


def _gzip_level(setting: Value[Any, Any], value: object) -> int:
    level = _LEVEL.check(setting, value)
    if level == 0:
        raise setting.wrong(GZIP_LEVEL.allowed, level)
    return level


_LEVEL: Final = number(-1, 9, "level")
GZIP_LEVEL: Final = replace(_LEVEL, check=_gzip_level, allowed="a whole number from 1 to 9, or -1")


def _ms(least: int, most: int = MAX_LONG) -> ValueKind[int, int]:
    return number(least, most, "milliseconds")


def _bytes(least: int, most: int = MAX_LONG) -> ValueKind[int, int]:
    return number(least, most, "bytes")


# Kafka's ranges (TopicConfig, LogConfig of 4.3); segment.bytes goes below Kafka's 1 MiB, as internal.segment.bytes does
@declared
class TopicSettings:
    """Settings that decide a topic's result. `named`: its own table set cleanup.policy."""

    cleanup_policy: Value[str | Iterable[str], tuple[str, ...]] = setting(
        POLICY,
        "Cleanup of the topic: compaction, retention, or both.",
        default=("delete",),
        note="As in Kafka the default is delete, so Lastkey compacts only topics that you name. With delete, no "
        "record expires unless retention.ms or retention.bytes is set.",
    )
    delete_retention_ms: Whole = setting(
        _ms(0),
        "Time that tombstones and transaction markers stay after their first cleaning.",
        default=86_400_000,
        note="Consumers that are still reading the log see them within this time.",
    )
    min_compaction_lag_ms: Whole = setting(
        _ms(0), "Younger records are not compacted; the rule applies to whole segments.", default=0
    )
    max_compaction_lag_ms: Whole = setting(
        _ms(1),
        "A partition whose oldest dirty record is older is due, regardless of its dirty ratio.",
        default=MAX_LONG,
        note="At least min.compaction.lag.ms. The default means never.",
    )
    min_cleanable_dirty_ratio: Real = setting(
        real(0, 1, "share"), "A partition is due if dirty bytes / (clean + dirty bytes) is above this.", default=0.5
    )
    min_dirty_bytes: Whole = setting(
        _bytes(0), "Ours: by its ratio, a partition is due only with at least this many dirty bytes.", default=0
    )
    segment_bytes: Whole = setting(_bytes(14, MAX_INT), "Cleaned segments are joined up to this size.", default=1 << 30)
    segment_index_bytes: Whole = setting(
        _bytes(4, MAX_INT),
        "Cleaned segments are joined while their offset and time indexes stay within this size.",
        default=10 << 20,
        note=f"A value below {LEAST_INDEX_BYTES} counts as {LEAST_INDEX_BYTES}, the size of the one entry that a time "
        "index always has.",
    )
    index_interval_bytes: Whole = setting(
        _bytes(0, MAX_INT), "Bytes of log for each index entry, approximately.", default=4096
    )
    time_index_interval_ms: Whole = setting(
        _ms(0),
        "Ours, for reindex: at most one time index entry in each interval of this length; 0: as Kafka.",
        default=0,
        note="An entry is written when the timestamp enters another interval (60000: another minute, the draft of "
        "KIP-33), and for the last timestamp. Look-ups by time stay right; the file is smaller, and the scan after an "
        "entry longer.",
    )
    producer_id_expiration_ms: Whole = setting(
        _ms(1, MAX_INT),
        "A producer that wrote within this time before --now is active, and keeps its last batch.",
        default=86_400_000,
        note="The batch stays, empty if necessary, so that the next sequence number stays known.",
    )
    retention_ms: Whole = setting(
        _ms(-1),
        "With delete: segments whose records are all older expire; -1: no limit. Kafka's default is seven days.",
        default=-1,
        note="An archive may outlive Kafka's default. Whole segments expire, the oldest first, by their largest "
        "timestamp (without one: the file's mtime); never the last segment, unless --sealed.",
    )
    retention_bytes: Whole = setting(
        _bytes(-1),
        "With delete: the oldest segments expire while at least this many bytes are left; -1: no limit.",
        default=-1,
        note="Whole segments expire, counted in bytes of the partition's .log files.",
    )
    retention_exact: Value[bool, bool] = setting(
        FLAG,
        "Ours: with retention.ms, older records are also removed from segments that stay.",
        default=False,
        note="Each record expires by its own timestamp; a record without one expires with its segment. A run reads "
        "every segment whose smallest timestamp it does not know yet.",
    )
    compaction_strategy: Value[Strategy, Strategy] = setting(
        choice(get_args(Strategy)),
        "The record of a key that stays: the last, or that with the highest timestamp or header version (KIP-280).",
        default="offset",
        note="No broker has KIP-280. Among equals the last one stays. timestamp and header read compacted data twice.",
    )
    compaction_strategy_header: Value[str, str] = setting(
        TEXT,
        "With the strategy header: the header that holds the version, eight bytes, big-endian, not negative.",
        default="",
        note="A record without the header is dropped in favour of any that has one.",
    )
    compaction_schedule: Value[Schedule, Schedule] = setting(
        choice(get_args(Schedule)),
        "Ours: full cleans all older segments; yield rewrites those with enough dead records.",
        default="full",
        note="full is what a broker does. yield cleans new segments, and finds dead records by filters and keys in the "
        "store; it needs the strategy offset without retention.exact, otherwise it acts as full.",
    )
    compaction_min_yield: Real = setting(
        real(0, 1, "share"), "Ours, by yield: an older segment is rewritten if this share of it is dead.", default=0.2
    )
    compaction_full_ms: Whole = setting(
        _ms(0),
        "Ours, by yield: after this time a run cleans all segments.",
        default=30 * 86_400_000,
        note="It also draws a new key for the hashes. Tombstones past their horizon are dropped then at the latest.",
    )
    null_keys: Value[NullKeys, NullKeys] = setting(
        choice(get_args(NullKeys)),
        "Ours: treatment of records without a key; fail makes the partition uncleanable, and counts them.",
        default="fail",
        note="A broker drops them silently.",
    )
    gaps: Value[Gaps, Gaps] = setting(
        choice(get_args(Gaps)),
        "Ours: treatment of offsets that are in no segment; fail makes the partition uncleanable.",
        default="fail",
        note="A file is missing or short, and no cleaner removed the offsets. accept continues without them; after "
        "--set gaps=accept of a single run, the report still says that the archive is needed.",
    )
    compression_type: Value[CompressionType, CompressionType] = setting(
        choice(get_args(CompressionType)),
        "Codec of the batches that a run rewrites; producer: each keeps its own, as a broker's cleaner does.",
        default="producer",
        note="Control batches keep theirs. policies does not take it from a cluster, where it decides about appends.",
    )
    compression_gzip_level: Whole = setting(
        GZIP_LEVEL, "With compression.type gzip: level from 1 to 9; -1: zlib's default, 6.", default=-1
    )
    compression_lz4_level: Whole = setting(
        number(1, 17, "level"),
        "With compression.type lz4: level of the high compressor; 9: the fast compressor.",
        default=9,
    )
    compression_zstd_level: Whole = setting(
        number(-131_072, 22, "level"), "With compression.type zstd: level; higher is smaller and slower.", default=3
    )
    recompress: Value[bool, bool] = setting(
        FLAG,
        "Ours: a compaction also rewrites all batches of other codecs in the segments that it cleans.",
        default=False,
        note="A batch that has the codec of compression.type keeps its bytes, whatever its level, as in a broker. A "
        "partition is not due because of this setting: --force cleans it, and retention and erasures ignore it.",
    )
    max_decompressed_batch_bytes: Whole = setting(
        _bytes(1 << 20, MAX_INT),
        "Ours, for every job: a larger batch, in its file or decompressed, is damage.",
        default=256 << 20,
        note=f"It limits the memory for a batch. Kafka allows {MAX_INT}.",
    )
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


@declared
class JobSettings:
    """Settings that change only speed and memory."""

    wave_partitions: Whole = setting(
        number(1, 100_000, "partitions"),
        "Partitions that are committed together; a run that is killed loses its current wave.",
        default=64,
    )
    wave_minutes: Whole = setting(
        number(1, 1440, "minutes"), "A wave is committed after this time even if it is not full.", default=10
    )
    engine: Value[Engine, Engine] = setting(
        ENGINE,
        "Execution engine: Spark, threads of one process, or the choice of each command; --engine overrides it.",
        default="default",
        note="threads start no JVM. auto: Spark on a cluster, or for more than spark.from.bytes. default: spark for "
        "compact, reindex, audits and lookup --at, auto for the others.",
    )
    spark_from_bytes: Whole = setting(
        _bytes(0), "With the engine auto on one machine, Spark reads more than this, threads less.", default=8 << 30
    )
    split_by: Value[SplitBy, SplitBy] = setting(
        choice(get_args(SplitBy)),
        "Spark tasks of one partition: one (none), several (always), or several if cores would be idle (auto).",
        default="auto",
        note="With more keys than half of task.memory.bytes holds, always may be faster. With threads, one task "
        "cleans a partition.",
    )
    split_bytes: Whole = setting(
        _bytes(1),
        "Share of a partition that each of several tasks cleans.",
        default=4 << 30,
        note="More tasks exchange more hashes.",
    )
    task_memory_bytes: Whole = setting(
        _bytes(64 << 20), "Memory of one task for keys, offsets and buffers.", default=1 << 30
    )
    chunk_bytes: Whole = setting(_bytes(64 << 10, 1 << 30), "Bytes of a file that are read at once.", default=8 << 20)
    max_bytes_per_second: Whole = setting(
        _bytes(0),
        "All tasks of a run together read and write at most this much in a second; 0: no limit.",
        default=0,
        note="As log.cleaner.io.max.bytes.per.second of a broker.",
    )


@declared
class ClusterState:
    """State of the cluster from which `policies` wrote a settings file; -1: unknown."""

    time_ms: Whole = setting(_ms(-1), "Time of that state.", default=-1, flag="time_ms")
    offset: Whole = setting(number(-1, MAX_LONG), "First offset of __cluster_metadata that is not in it.", default=-1)


TABLES: Final = ("defaults", "topics", "job", "made")


@dataclass(frozen=True)
class Config:
    """Settings of one run: tables as they stand in the file, already checked."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    topics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    job: JobSettings = field(default_factory=JobSettings)
    path: str = ""
    made: ClusterState | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)  # settings of every topic, by --set, for this run alone

    def topic_settings(self, topic: str) -> TopicSettings:
        """Return the settings of one topic: defaults, then the globs that match it in the file's order, then its exact
        name, then --set. Raises BAD_SETTING for settings that contradict each other.
        """
        values = dict(self.defaults)
        named = False
        globs = [glob for glob in self.topics if glob != topic and matches(glob, topic)]
        for glob in [*globs, *([topic] if topic in self.topics else [])]:
            values |= self.topics[glob]
            named = named or "cleanup_policy" in self.topics[glob]
        settings = TopicSettings(**values | dict(self.overrides), named=named)
        for name, expected, found in self._contradictions(topic, settings):
            path, table = self.path or "settings", f"topic {topic}"
            raise BAD_SETTING(path=path, table=table, setting=name, expected=expected, found=found)
        return replace(settings, segment_index_bytes=max(settings.segment_index_bytes, LEAST_INDEX_BYTES))

    def overridden(self, values: Mapping[str, Any]) -> Config:
        """Return these settings with checked values, by field, in place of those of every table."""
        job = {name: value for name, value in values.items() if name in JobSettings.__dataclass_fields__}
        topic_values = {name: value for name, value in values.items() if name not in job}
        return _consistent(replace(self, job=replace(self.job, **job), overrides={**self.overrides, **topic_values}))

    def _contradictions(self, topic: str, settings: TopicSettings) -> Iterator[tuple[str, str, object]]:
        """Yield settings of a topic that contradict others: name, expected, found."""
        named, strategy = settings.compaction_strategy_header, settings.compaction_strategy
        if bool(named) != (strategy == "header"):
            expected = "none" if named else "the name of the header that holds the version"
            yield "compaction.strategy.header", expected, f"{named!r}, with strategy {strategy}"
        lag, retention_ms = settings.min_compaction_lag_ms, settings.retention_ms
        if lag > settings.max_compaction_lag_ms:  # Kafka refuses this too
            yield "min.compaction.lag.ms", f"at most max.compaction.lag.ms ({settings.max_compaction_lag_ms})", lag
        if settings.retention_exact and settings.expires and retention_ms < 0:
            yield "retention.exact", "a retention.ms of 0 or more", f"true, with retention.ms {retention_ms}"
        elif settings.retention_exact and settings.expires and settings.compacts and lag > retention_ms:
            why = f"min.compaction.lag.ms of at most retention.ms ({retention_ms})"
            found = f"true, with min.compaction.lag.ms {lag}"
            yield "retention.exact", f"{why}, because records within the lag are kept", found
        if settings.recompress and settings.compression_type == "producer":
            yield "recompress", "a codec as compression.type", "true, with compression.type producer"
        if settings.expires:
            return
        policy = ",".join(settings.cleanup_policy)
        for glob, table in self.topics.items():  # [defaults] may have limits, as other topics use them
            for name, none in (("retention_ms", -1), ("retention_bytes", -1), ("retention_exact", False)):
                if matches(glob, topic) and table.get(name, none) > none:
                    found = f"{table[name]}, with cleanup.policy {policy}"
                    yield name.replace("_", "."), "delete in cleanup.policy", found


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


def _where(text: str, message: str) -> str:
    """Return tomllib's message, with line and column instead of "at end of document"."""
    lines = text.splitlines() or [""]
    while len(lines) > 1 and not lines[-1].strip():
        lines.pop()
    return message.replace("at end of document", f"at line {len(lines)}, column {len(lines[-1]) + 1}, the end")


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
        topics[glob] = _check(content, _named(TopicSettings), path, f'[topics."{glob}"]')
    defaults = _check(tables.get("defaults", {}), _named(TopicSettings), path, "[defaults]")
    job = JobSettings(**_check(tables.get("job", {}), _named(JobSettings), path, "[job]"))
    made = ClusterState(**_check(tables["made"], _named(ClusterState), path, "[made]")) if "made" in tables else None
    return _consistent(Config(defaults, topics, job, path, made))


def _consistent(config: Config) -> Config:
    """Return settings, or raise BAD_SETTING for contradictions now, not at the first topic that has one."""
    for name in ("", *config.topics):
        config.topic_settings(name)
    return config


def _check(
    content: Mapping[str, Any], declared: Mapping[str, Value[Any, Any]], path: str, table: str, *, typed: bool = False
) -> dict[str, Any]:
    """Return checked settings of a table by field. declared: the table's settings by name; typed: all are text."""
    checked = {}
    for name, value in _flatten(content).items():
        if name not in declared:
            raise UNKNOWN_SETTING(path=path, table=table, found=name, near=nearest(name, declared))
        declaration = declared[name]
        try:
            given = declaration.kind.from_text(declaration, str(value)) if typed else value
            checked[declaration.name] = declaration.kind.check(declaration, given)
        except UsageError as error:
            raise BAD_SETTING(**{"setting": name, **error.fields, "path": path, "table": table}) from None
    return checked


def _named(declaration: type) -> dict[str, Value[Any, Any]]:
    return {value.flag: value for value in declared_values(declaration)}


def _flatten(content: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Return settings with dotted names: TOML parses unquoted ones (segment.bytes = 1) as nested tables."""
    flat: dict[str, object] = {}
    for key, value in content.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


Settings = Location | Mapping[str, Any] | Config  # a TOML file, its tables as dictionaries, or checked settings


def load_settings(value: object) -> Config:
    """Return settings: checked ones as they are, tables as dictionaries, or a file's."""
    if isinstance(value, Config):
        return value
    if isinstance(value, Mapping):
        return parse_config(value)
    return load_config(None if value is None else check_location("config", value))


SETTINGS: Final[ValueKind[Settings | None, Config]] = ValueKind(
    lambda _, value: load_settings(value), "FILE", completes="file"
)
_BY_NAME: Final = _named(TopicSettings) | _named(JobSettings)


def _overrides(option: Value[Any, Any], value: object) -> Mapping[str, Any]:
    """Check NAME=VALUE, or several, or settings in a dictionary. Return their values by field of the settings."""
    if isinstance(value, Mapping):
        given, typed = dict(value), False
    else:
        given, typed = {}, True
        for text in check_each(option, () if value is None else value, TEXT.check, "NAME=VALUE"):
            name, equals, word = text.partition("=")
            if not equals or name in given:
                raise option.wrong(f"one value of {name}" if equals else "NAME=VALUE", repr(text))
            given[name] = word
    if "cleanup.policy" in given:  # a policy for every topic would compact topics that were not named
        raise UsageError(
            message=f"{option.flag}: give --cleanup-policy compact with --topics instead of cleanup.policy"
        )
    return _check(given, _BY_NAME, option.flag, "NAME=VALUE", typed=typed)


OVERRIDES: Final[ValueKind[str | Iterable[str] | Mapping[str, Any] | None, Mapping[str, Any]]] = ValueKind(
    _overrides, "NAME=VALUE", choices=tuple(f"{name}=" for name in _BY_NAME), repeats=True
)


def check_now_ms(now_ms: int) -> None:
    """Raise BAD_NOW for a clock in seconds or microseconds."""
    if 0 <= now_ms < 10**11:  # 10^11 ms is March 1973; 10^11 s is the year 5138
        raise BAD_NOW(expected=_CLOCK, found=f"{now_ms}: seconds", advice=f"did you mean {now_ms * 1000}?")
    if not 0 <= now_ms < 10**14:  # the year 5138
        raise BAD_NOW(expected=_CLOCK, found=now_ms, advice="without this option the clock is the current time")
