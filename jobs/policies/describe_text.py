"""Output of `kafka-configs --describe`, for topics and brokers, with or without --all; several outputs in one file.

    Dynamic configs for topic orders are:
      cleanup.policy=compact sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact, ...}
    All configs for broker 1 are:
    Default configs for brokers in the cluster are:

Synonyms say of which layer each value is. A value may hold line breaks; a line that fits nowhere is an error, because
a setting that is passed over would give another policy. Source: ConfigCommand of Kafka 4.3.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lastkey.jobs.errors import BAD_DESCRIPTION
from lastkey.jobs.policies.cluster_configs import ClusterConfigs
from lastkey.logformat.names import is_topic

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
    """Add what a text says to the settings of a cluster. Raise BAD_DESCRIPTION, POLICY_SOURCES."""
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
