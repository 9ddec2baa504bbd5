"""Settings of a cluster as its layers state them, and the value that each topic has of them.

    topic  >  broker, dynamic  >  every broker, dynamic  >  broker, static (server.properties)  >  Kafka's default

Within a layer the first synonym wins: log.retention.ms before .minutes before .hours. Source: LogConfig,
ServerTopicConfigSynonyms, DynamicBrokerConfig and ConfigHelper of Kafka 4.3.0.

One source is the output of `kafka-configs --describe`, for topics and brokers, with or without --all; several outputs
in one file:

    Dynamic configs for topic orders are:
      cleanup.policy=compact sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact, ...}
    All configs for broker 1 are:
    Default configs for brokers in the cluster are:

Synonyms name the layer of each value. A value may contain line breaks. An unexpected line is an error, because an
ignored setting would change the policy. Source: ConfigCommand of Kafka 4.3.0.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from lastkey.jobs import installation
from lastkey.jobs.command.config import ClusterState, TopicSettings, parse_config
from lastkey.jobs.command.declare import declared_values
from lastkey.jobs.errors import BAD_DESCRIPTION, BAD_SETTING, BROKERS_DISAGREE, POLICY_SOURCES
from lastkey.logformat.control_characters import visible
from lastkey.logformat.names import is_topic

Value = int | float | str
Layer = dict[str, str]

_MINUTE, _HOUR = 60_000, 3_600_000
# setting of a topic -> names that brokers have for it, the first wins, and how many of its units theirs is
SYNONYMS: Final[dict[str, tuple[tuple[str, int], ...]]] = {
    "cleanup.policy": (("log.cleanup.policy", 1),),
    "delete.retention.ms": (("log.cleaner.delete.retention.ms", 1),),
    "index.interval.bytes": (("log.index.interval.bytes", 1),),
    "max.compaction.lag.ms": (("log.cleaner.max.compaction.lag.ms", 1),),
    "min.cleanable.dirty.ratio": (("log.cleaner.min.cleanable.ratio", 1),),
    "min.compaction.lag.ms": (("log.cleaner.min.compaction.lag.ms", 1),),
    "producer.id.expiration.ms": (("producer.id.expiration.ms", 1),),  # a setting of brokers alone
    "retention.bytes": (("log.retention.bytes", 1),),
    "retention.ms": (("log.retention.ms", 1), ("log.retention.minutes", _MINUTE), ("log.retention.hours", _HOUR)),
    "segment.bytes": (("log.segment.bytes", 1),),
    "segment.index.bytes": (("log.index.size.max.bytes", 1),),
}
# names of topics' and brokers' settings -> the topic's
SETTING_OF: Final = {name: setting for setting, names in SYNONYMS.items() for name in (setting, *(n for n, _ in names))}
_OURS: Final = {value.flag: value.default for value in declared_values(TopicSettings)}
# Our defaults are Kafka's, but for the retention
KAFKA_DEFAULTS: Final[dict[str, Value]] = {
    **{name: _OURS[name] for name in SYNONYMS},
    "cleanup.policy": "delete",
    "retention.ms": 168 * _HOUR,
}
NO_POLICY: Final = ""  # policy of a topic that is neither compacted nor expires (KIP-1161)
POLICY: Final = "cleanup.policy"
LIMITS: Final = ("retention.ms", "retention.bytes")  # below 0: none
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,20}")


@dataclass
class Broker:
    """Settings of one broker by layer; `complete`: the static ones are known."""

    dynamic: Layer = field(default_factory=dict)
    static: Layer = field(default_factory=dict)
    default: Layer = field(default_factory=dict)
    complete: bool = False


@dataclass
class ClusterConfigs:
    """Settings by source; `resolved` has the effective values that a broker reported."""

    topics: dict[str, Layer] = field(default_factory=dict)  # topic -> its own settings
    resolved: dict[str, Layer] = field(default_factory=dict)  # topic -> values as described
    brokers: dict[str, Broker] = field(default_factory=dict)  # by id
    every_broker: Layer = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)  # described object -> source

    def add(self, what: str, where: str, layer: Layer, values: Mapping[str, str]) -> None:
        """Add values to a layer. Raise POLICY_SOURCES if another source has a different value of a relevant setting."""
        changed = {name for name, _ in layer.items() ^ values.items()} & SETTING_OF.keys()
        names = {name for name in changed if not _are_same(name, layer.get(name), values.get(name))}
        if what in self.sources and names:
            raise POLICY_SOURCES(
                path=where, expected=f"{what} as in {self.sources[what]}", found=f"another {', '.join(sorted(names))}"
            )
        self.sources.setdefault(what, where)
        layer.update(values)

    def broker(self, name: str) -> Broker:
        """Return a broker by its id; make it if it is new."""
        return self.brokers.setdefault(name, Broker())


def topic_values(configs: ClusterConfigs, topic: str, *, retention: bool) -> dict[str, Value]:
    """Return the value that a topic has of each setting that counts: limits of retention count with delete in its
    policy, and not at all without `retention`. Raise BROKERS_DISAGREE, BAD_SETTING.
    """
    policy = _value(configs, topic, POLICY)
    expires = retention and "delete" in str(policy)
    return {POLICY: policy} | {
        setting: _value(configs, topic, setting)
        for setting in SYNONYMS
        if setting != POLICY and (expires or setting not in LIMITS)
    }


def not_shown(configs: ClusterConfigs) -> list[str]:
    """Return the settings that topics may have from a file of a broker that no source shows."""
    brokers = configs.brokers.values()
    if brokers and all(broker.complete for broker in brokers):
        return []
    described = [values.keys() for topic, values in configs.resolved.items() if topic in configs.topics]
    known = set.intersection(*map(set, described)) if len(described) == len(configs.topics) else set()
    return sorted(SYNONYMS.keys() - known)


def _are_same(name: str, text: str | None, other: str | None) -> bool:
    """Return whether two texts of a setting are one value: brokers show some of them in another form."""
    if text is None or other is None:
        return False
    setting = SETTING_OF[name]
    return _typed(setting, text, 1, name) == _typed(setting, other, 1, name)


def _value(configs: ClusterConfigs, topic: str, setting: str) -> Value:
    own = configs.topics[topic].get(setting)
    return _broker_value(configs, topic, setting) if own is None else _typed(setting, own, 1, f"topic {topic}")


def _broker_value(configs: ClusterConfigs, topic: str, setting: str) -> Value:
    sources_by_value: dict[Value, list[str]] = {}
    for who, value in _stated(configs, topic, setting):
        sources_by_value.setdefault(value, []).append(who)
    if len(sources_by_value) > 1:
        values_text = "; ".join(f"{value} ({', '.join(who)})" for value, who in sources_by_value.items())
        raise BROKERS_DISAGREE(setting=setting, topic=topic, found=values_text)
    return next(iter(sources_by_value), KAFKA_DEFAULTS[setting])


def _stated(configs: ClusterConfigs, topic: str, setting: str) -> Iterator[tuple[str, Value]]:
    """Yield each value that a topic without its own value would have, and the source of that value."""
    resolved = configs.resolved.get(topic, {}).get(setting)
    for name, broker in sorted(configs.brokers.items()) or [("", Broker())]:
        for layer in (broker.dynamic, configs.every_broker, broker.static, broker.default):
            given = [(synonym, unit) for synonym, unit in SYNONYMS[setting] if synonym in layer]
            if given:
                synonym, unit = given[0]
                who = f"broker {name}" if name else "every broker"
                yield who, _typed(setting, layer[synonym], unit, f"{who}, {synonym}")
                break
        else:
            if name and (broker.complete or resolved is None):  # otherwise a file may override the description
                yield f"broker {name}", KAFKA_DEFAULTS[setting]
    if resolved is not None:
        yield f"topic {topic} as described", _typed(setting, resolved, 1, f"topic {topic}")


def _typed(setting: str, text: str, unit: int, table: str) -> Value:
    """Return a value as our settings have it. Raise BAD_SETTING for text that Kafka would not take."""
    default = KAFKA_DEFAULTS[setting]
    if isinstance(default, str):
        names = sorted(filter(None, (name.strip() for name in text.split(","))))
        return ",".join(names)
    try:
        if isinstance(default, float):
            return float(text)
        if _WHOLE.fullmatch(text.strip()) is None:
            raise ValueError(text)
        number = int(text) * unit
    except ValueError:
        raise BAD_SETTING(path="policies", table=table, setting=setting, expected="a number", found=text) from None
    return max(number, -1) if setting in LIMITS else number


@dataclass(frozen=True)
class TopicTable:
    """Table of one topic, and its own settings that are left out."""

    settings: dict[str, Value]
    ignored: tuple[str, ...] = ()


def policy(configs: ClusterConfigs, topic: str, *, retention: bool) -> TopicTable:
    """Return a topic's table: its policy, and what differs from our defaults. retention: with its limits."""
    values, own, ours = topic_values(configs, topic, retention=retention), configs.topics[topic], TopicSettings()
    settings = {
        name: value
        for name, value in sorted(values.items())
        if name == POLICY or value != getattr(ours, name.replace(".", "_"))
    }
    if settings[POLICY] == NO_POLICY:
        settings[POLICY] = "delete"  # without limits no record is removed: the same
    return TopicTable(settings, tuple(sorted(own.keys() - values.keys())))


def policies_text(
    policies: Mapping[str, TopicTable], cluster_state: ClusterState, sources: Iterable[str], notes: Iterable[str]
) -> str:
    """Return policies as TOML. Raise BAD_SETTING or its like if our own parser refuses it."""
    topics = "1 topic" if len(policies) == 1 else f"{len(policies)} topics"
    lines = [
        f"# Policies of {topics} of a Kafka cluster, made by `policies` of Lastkey {installation.version()} from:",
        *(f"#   {_comment(source)}" for source in sources),
        "# Of a topic that is not here nothing is compacted, and nothing expires.",
        *(f"# note: {_comment(note)}" for note in notes),
    ]
    if cluster_state.time_ms >= 0:
        lines += ["", "[made]", f"time_ms = {cluster_state.time_ms}  # {_moment(cluster_state.time_ms)}"]
        lines += (
            [f"offset = {cluster_state.offset}  # of __cluster_metadata: the first that is not in it"]
            if cluster_state.offset >= 0
            else []
        )
    for topic, of in sorted(policies.items()):
        lines += ["", f'[topics."{topic}"]']
        lines += [f'"{name}" = {toml_value(value)}' for name, value in of.settings.items()]
        lines += [f"# without effect here: {_comment(', '.join(of.ignored))}"] if of.ignored else []
    text = "\n".join(lines) + "\n"
    parse_config(tomllib.loads(text), "policies")
    return text


def toml_value(value: Value | bool) -> str:
    """Return a value as TOML writes it."""
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else repr(value)


def _comment(text: str) -> str:
    return visible(" ".join(text.split()))


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


TOPIC_LAYER: Final = "DYNAMIC_TOPIC_CONFIG"
BROKER_LAYER: Final = "DYNAMIC_BROKER_CONFIG"
EVERY_LAYER: Final = "DYNAMIC_DEFAULT_BROKER_CONFIG"
STATIC_LAYER: Final = "STATIC_BROKER_CONFIG"
DEFAULT_LAYER: Final = "DEFAULT_CONFIG"
_LAYERS: Final = "|".join((TOPIC_LAYER, BROKER_LAYER, EVERY_LAYER, STATIC_LAYER, DEFAULT_LAYER, "[A-Z_]+_CONFIG"))
_HEAD: Final = re.compile(r"(?P<form>Dynamic|All|Default) configs for (?P<what>.+) are:")
_ENTRY: Final = re.compile(
    r"  (?P<name>[^\s=]+)=(?P<value>.*) sensitive=(?:true|false) synonyms=\{(?P<synonyms>.*)\}", re.DOTALL
)
_SYNONYM: Final = re.compile(rf"(?:\A|, )(?P<layer>{_LAYERS}):(?P<name>[^\s=,]+)=")
_NULL: Final = "null"
_MOST_LINES: Final = 200  # limit for a value: certificates and logins have some


@dataclass(frozen=True)
class ConfigEntry:
    """A setting that was described; synonyms: (layer, name, value), the one that counts first."""

    name: str
    value: str | None
    synonyms: tuple[tuple[str, str, str], ...]


def is_described(text: str) -> bool:
    """Return whether a text begins as the tool's output does."""
    return _HEAD.match(text.lstrip()) is not None


def add_described(text: str, path: str, configs: ClusterConfigs) -> None:
    """Add the settings that a text contains to those of a cluster. Raise BAD_DESCRIPTION, POLICY_SOURCES."""
    for number, form, what, entries in _sections(text, path):
        kind, _, name = what.partition(" ")
        if form == "Default" and what == "brokers in the cluster":
            own = {entry.name: entry.value for entry in entries if entry.value is not None}
            configs.add("every broker", path, configs.every_broker, own)
        elif kind == "topic" and is_topic(name):
            add_topic(configs, name, entries, path, resolved=form == "All")
        elif kind == "broker" and name.isdecimal():
            add_broker(configs, name, entries, path, complete=form == "All")
        elif form != "Default" and kind in ("topic", "broker"):
            raise BAD_DESCRIPTION(path=path, position=number, expected=f"the name of a {kind}", found=repr(name))
        else:
            configs.notes.append(f"{path}: settings of {what} have no effect here")


def add_topic(configs: ClusterConfigs, topic: str, entries: list[ConfigEntry], where: str, *, resolved: bool) -> None:
    """Add a topic that was described; resolved: with the values that it has from elsewhere."""
    own = {e.name: e.value for e in entries if e.value is not None and e.synonyms and e.synonyms[0][0] == TOPIC_LAYER}
    configs.add(f"topic {topic}", where, configs.topics.setdefault(topic, {}), own)
    if resolved:
        configs.resolved.setdefault(topic, {}).update({e.name: e.value for e in entries if e.value is not None})


def add_broker(configs: ClusterConfigs, name: str, entries: list[ConfigEntry], where: str, *, complete: bool) -> None:
    """Add a broker that was described; complete: with its static settings."""
    broker = configs.broker(name)
    layers: dict[str, dict[str, str]] = {}
    for entry in entries:
        for layer, synonym, value in entry.synonyms:
            if value != _NULL:
                layers.setdefault(layer, {})[synonym] = value
    configs.add(f"broker {name}", where, broker.dynamic, layers.get(BROKER_LAYER, {}))
    if complete:
        configs.add("every broker", where, configs.every_broker, layers.get(EVERY_LAYER, {}))
        broker.static, broker.default = layers.get(STATIC_LAYER, {}), layers.get(DEFAULT_LAYER, {})
        broker.complete = True


def _sections(text: str, path: str) -> Iterator[tuple[int, str, str, list[ConfigEntry]]]:
    """Yield (line, form, what, entries) of each section."""
    number, form, what = 0, "", ""
    entries: list[ConfigEntry] = []
    begun, begun_at = "", 0  # an entry whose end is on a later line
    for at, line in enumerate(text.splitlines(), 1):
        head = _HEAD.fullmatch(line)
        if begun and (head is not None or at - begun_at > _MOST_LINES):
            break
        if head is not None:
            if form:
                yield number, form, what, entries
            number, form, what, entries = at, head["form"], head["what"], []
            continue
        if not begun and not line.strip():
            continue
        begun, begun_at = (f"{begun}\n{line}", begun_at) if begun else (line, at)
        entry = _ENTRY.fullmatch(begun)
        if entry is not None and form:
            entries.append(_entry(entry["name"], entry["value"], entry["synonyms"], path, begun_at))
            begun = ""
        elif not form or re.match(r"  [^\s=]+=", begun) is None:
            raise BAD_DESCRIPTION(path=path, position=begun_at, expected=_expected(form), found=repr(begun[:80]))
    if begun:
        raise BAD_DESCRIPTION(path=path, position=begun_at, expected="the end of the line", found=repr(begun[:80]))
    if form:
        yield number, form, what, entries


def _expected(form: str) -> str:
    return "NAME=VALUE sensitive=... synonyms={...}" if form else '"Dynamic configs for topic NAME are:" or its like'


def _entry(name: str, value: str, text: str, path: str, number: int) -> ConfigEntry:
    matches = list(_SYNONYM.finditer(text))
    if text and (not matches or matches[0].start()):
        raise BAD_DESCRIPTION(path=path, position=number, expected="synonyms={LAYER:NAME=VALUE, ...}", found=repr(text))
    ends = [*(one.start() for one in matches[1:]), len(text)][: len(matches)]
    synonyms = tuple((one["layer"], one["name"], text[one.end() : end]) for one, end in zip(matches, ends, strict=True))
    return ConfigEntry(name, None if value == _NULL else value, synonyms)
