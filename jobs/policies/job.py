"""`policies`: the settings of a cluster's topics as our TOML, from files that describe it or from the cluster itself.

  kafka-configs' output, server.properties, KRaft's snapshots and log, a live cluster -> layers (cluster_configs.py)
  layers -> the value that each topic has of each setting -> a table for each topic

Each file is known by its content. The same state of a cluster gives the same tables from any source.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

from pyarrow import fs as pafs

from lastkey.jobs.command.config import ClusterState
from lastkey.jobs.command.options import PoliciesOptions
from lastkey.jobs.command.parse import check_topics, parse_properties, read_given
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import JobReport
from lastkey.jobs.command.whole_file import POLICIES, check_file, whole_file
from lastkey.jobs.errors import (
    CONFIG_FILE,
    DAMAGED_METADATA,
    OUTPUT_EXISTS,
    POLICY_SOURCES,
    MissingPathError,
    UsageError,
)
from lastkey.jobs.policies.cluster_configs import (
    SETTING_OF,
    Broker,
    ClusterConfigs,
    Layer,
    TopicTable,
    add_described,
    is_described,
    not_shown,
    policies_text,
    policy,
)
from lastkey.jobs.policies.live_cluster import add_live
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.names import is_topic
from lastkey.logformat.storage.locations import locate
from lastkey.udfs.cluster_metadata.image import BROKER, EVERY_BROKER, TOPIC
from lastkey.udfs.cluster_metadata.log_files import FOLDER, MetadataFile, list_metadata, metadata_file, read_metadata

_IDS: Final = ("node.id", "broker.id")
_OF_BROKERS: Final = frozenset((*_IDS, "process.roles", "log.dirs", "log.dir", "zookeeper.connect", "listeners"))
_EXPECTED: Final = (
    "the output of kafka-configs --describe, a broker's server.properties, or a snapshot or segment of "
    "__cluster_metadata under its own name"
)


@dataclass(frozen=True)
class TopicPolicy:
    """Topic with its table."""

    facts: ClassVar[str] = "topic settings=table.settings ignored_settings=table.ignored"
    topic: str
    table: TopicTable


@dataclass
class PoliciesReport(JobReport):
    """Report of `policies`: the TOML itself, unless it was written to a file."""

    job = "policies"
    done = "{policies:topic} in {output}"
    facts = "output sources metadata_time_ms=_state_facts.time_ms metadata_offset=_state_facts.offset topics=_topics"

    made: ClusterState = field(default_factory=ClusterState)
    sources: tuple[str, ...] = ()
    policies: Mapping[str, TopicTable] = field(default_factory=dict)
    output: str | None = None
    text: str = ""

    @property
    def _state_facts(self) -> dict[str, int | None]:
        return {name: None if value < 0 else value for name, value in vars(self.made).items()}

    @property
    def _topics(self) -> list[TopicPolicy]:
        return [TopicPolicy(topic, of) for topic, of in sorted(self.policies.items())]

    @property
    def raw(self) -> str | None:
        """The TOML, unless it was written to a file. It has the notes as comments."""
        return self.text.rstrip("\n") if self.output is None else None


def run(options: PoliciesOptions, progress: Progress) -> PoliciesReport:
    """Write the policies of a cluster. Raise POLICY_SOURCES, BROKERS_DISAGREE and others; then no file is written."""
    output = None if options.output is None else Path(options.output).absolute()
    if output is not None and output.exists() and not options.replace:
        raise OUTPUT_EXISTS(path=output)
    if output is not None:
        check_file("--output", str(output), POLICIES, options.sources)
    if not options.sources and options.bootstrap_server is None:
        raise UsageError(message="policies needs FILE, or --bootstrap-server HOST:PORT")
    if options.command_config is not None and options.bootstrap_server is None:
        raise UsageError(message="--command-config is for --bootstrap-server")
    progress.doing("reading settings")
    sources = (*options.sources, *filter(None, [options.bootstrap_server]))
    try:
        configs, cluster_state = _read(options)
    except LogFormatError as error:
        raise DAMAGED_METADATA(message=str(error)) from error
    if not configs.topics:
        raise MissingPathError(path=", ".join(sources), expected="topics with their settings", found="none")
    if odd := sorted(topic for topic in configs.topics if not is_topic(topic)):
        raise DAMAGED_METADATA(message=f"{', '.join(sources)}: {odd[0]!r} is no name of a topic")
    check_topics(options.topics, configs.topics, ", ".join(sources))
    topics = [topic for topic in configs.topics if options.topics.takes(topic)]
    report = PoliciesReport(made=cluster_state, sources=sources, output=options.output)
    report.policies = {topic: policy(configs, topic, retention=options.retention) for topic in topics}
    report.notes += [*configs.notes, *_notes(configs)]
    report.text = policies_text(report.policies, cluster_state, sources, report.notes)
    progress.doing("")
    if output is not None:
        with whole_file(output, POLICIES, "--output") as file:
            file.write(report.text.encode())
    return report


def _read(options: PoliciesOptions) -> tuple[ClusterConfigs, ClusterState]:
    """Return the sources' configurations and state, dated by the oldest source: any may be outdated since then."""
    configs = ClusterConfigs()
    times: list[int] = []
    metadata: list[MetadataFile] = []
    properties: dict[str, dict[str, str]] = {}
    for source in options.sources:
        filesystem, path = locate(source)
        info = filesystem.get_file_info(path)
        if info.type == pafs.FileType.NotFound:
            raise MissingPathError(path=source, expected="a file, or a folder of __cluster_metadata", found="nothing")
        logs = list_metadata(filesystem, path) if info.type == pafs.FileType.Directory else []
        if info.type == pafs.FileType.Directory and not logs:
            raise MissingPathError(path=source, expected=f"snapshots or segments, in it or in {FOLDER}", found="none")
        single = metadata_file(filesystem, path) if info.type == pafs.FileType.File else None
        if logs or single is not None:
            metadata += logs or filter(None, [single])
            continue
        text = read_given(source, _EXPECTED)
        if is_described(text):
            add_described(text, source, configs)
            times.append(Path(source).stat().st_mtime_ns // 1_000_000)
        else:
            properties[source] = _properties(text, source)
    offset = -1
    if metadata:
        offset, time_ms = _add_metadata(metadata, configs)
        times.append(time_ms)
    if options.bootstrap_server is not None:
        times.append(time.time_ns() // 1_000_000)
        add_live(options.bootstrap_server, options.command_config, configs)
    _add_static(properties, configs)
    return configs, ClusterState(time_ms=min(times, default=-1), offset=offset if len(times) == 1 else -1)


def _properties(text: str, path: str) -> dict[str, str]:
    settings = parse_properties(text, path)
    if not _OF_BROKERS & set(settings):
        raise CONFIG_FILE(path=path, expected=_EXPECTED, found="another text")
    return settings


def _add_metadata(files: Sequence[MetadataFile], configs: ClusterConfigs) -> tuple[int, int]:
    """Add the state of __cluster_metadata; return the end of it, and its time."""
    metadata = read_metadata(files)
    image, where = metadata.image, FOLDER
    for topic in image.topics:
        configs.add(f"topic {topic}", where, configs.topics.setdefault(topic, {}), image.get_settings(TOPIC, topic))
    configs.add("every broker", where, configs.every_broker, image.get_settings(BROKER, EVERY_BROKER))
    for broker in image.brokers:
        configs.add(f"broker {broker}", where, configs.broker(broker).dynamic, image.get_settings(BROKER, broker))
    gone = {name for (kind, name), of in image.configs.items() if kind == BROKER and name and of} - image.brokers
    if gone:
        configs.notes.append(f"settings of brokers that are not registered: {', '.join(sorted(gone))}; left out")
    configs.notes += metadata.notes
    return metadata.end_offset, metadata.time_ms


def _add_static(properties: Mapping[str, dict[str, str]], configs: ClusterConfigs) -> None:
    """Add the files of brokers: a single one counts for all brokers, several each for the broker that it names."""
    of_brokers = {
        path: settings for path, settings in properties.items() if settings.get("process.roles") != "controller"
    }
    configs.notes += [f"{path}: of a controller alone; it has no effect" for path in properties.keys() - of_brokers]
    if len(of_brokers) == 1 and configs.brokers:
        [(path, settings)] = of_brokers.items()
        for broker in configs.brokers.values():
            _set_static(broker, settings)
        if len(configs.brokers) > 1:
            configs.notes.append(f"{path} counts for all {len(configs.brokers)} brokers")
        return
    brokers_are_known = bool(configs.brokers)
    for path, settings in sorted(of_brokers.items()):
        name = next((settings[name] for name in _IDS if name in settings), "0")
        if brokers_are_known and name not in configs.brokers:
            raise POLICY_SOURCES(
                path=path, expected=f"one of the brokers {', '.join(sorted(configs.brokers))}", found=name
            )
        _set_static(configs.broker(name), settings)
    lacking = sorted(name for name, broker in configs.brokers.items() if not broker.complete)
    if of_brokers and lacking:
        raise UsageError(
            message=f"no server.properties of broker {', '.join(lacking)}: give one for all, or one of each"
        )


def _set_static(broker: Broker, layer: Layer) -> None:
    if not broker.complete:  # otherwise the broker itself has reported its settings
        broker.static, broker.complete = dict(layer), True


def _notes(configs: ClusterConfigs) -> Iterable[str]:
    """Yield notes on what the sources do not show, and on what has no effect here."""
    if unknown := not_shown(configs):
        yield (
            f"no source shows what brokers have in their files; Kafka's defaults stand for {', '.join(unknown)} where "
            "nothing else sets them (give server.properties, or brokers described with --all)"
        )
    dynamic = set(configs.every_broker).union(*(broker.dynamic for broker in configs.brokers.values()))
    if others := sorted(dynamic - SETTING_OF.keys()):
        yield f"dynamic settings of brokers without effect here: {', '.join(others)}"
