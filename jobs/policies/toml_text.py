"""Policies as the TOML that every job reads with --config: a table for each topic, what differs from our defaults."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from lastkey.jobs import installation
from lastkey.jobs.command.config import ClusterState, TopicSettings, parse_config
from lastkey.jobs.policies.cluster_configs import NO_POLICY, POLICY, ClusterConfigs, Value, topic_values
from lastkey.logformat.control_characters import visible


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
        settings[POLICY] = "delete"  # without limits nothing goes: the same
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
