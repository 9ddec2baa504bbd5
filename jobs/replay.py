"""`replay (ARCHIVE | --store STORE) --bootstrap-server HOST:PORT`: records into topics of a live cluster, each once.

Each partition is a task (udfs.replay). Topics must exist; they are not created. The progress is in the cluster, as the
offsets of a consumer group. So a run that was killed, or stopped at damage, continues where its last transaction ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from lastkey.jobs.command.parse import Rename
from lastkey.jobs.command.progress import BYTES, Progress
from lastkey.jobs.command.read_options import ReplayOptions
from lastkey.jobs.command.reporting import JobReport, TextTable, counted
from lastkey.jobs.data_source.plan_tasks import partitions_of_command
from lastkey.jobs.errors import NO_CLUSTER, UsageError
from lastkey.jobs.live_cluster import admin_client, client_settings, describe_client_error
from lastkey.jobs.spark.engine import each
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.replay import Replayed, ReplayTask, replay_partition
from lastkey.udfs.storage import normal_uri

_SECONDS: Final = 30.0
_TIME_TYPE: Final = "message.timestamp.type"


@dataclass
class ReplayReport(JobReport):
    """Report of `replay`."""

    job = "replay"
    done = "{partitions:partition} replayed to {cluster}; progress: group {group}"
    facts = "cluster group partitions"
    results_at = "partitions"
    text_tables = (TextTable("partitions", "partition target:to start:from_offset next_offset records transactions"),)

    cluster: str
    group: str
    partitions: list[Replayed] = field(default_factory=list)


def run(options: ReplayOptions, progress: Progress) -> ReplayReport:
    """Replay every partition that the options name."""
    partitions = partitions_of_command(options)
    targets = target_topics(sorted({p.topic for p in partitions if p.topic is not None}), options.renames)
    group = options.group or progress_group(options)
    settings = client_settings(options.bootstrap_server, options.command_config)
    report = ReplayReport(options.bootstrap_server, group)
    report.other_problems += [p.problem for p in partitions if p.topic is None and p.problem is not None]
    wanted = [p for p in partitions if p.topic is not None]
    check_targets(settings, wanted, targets)
    tasks = [
        ReplayTask(
            p,
            targets[str(p.topic)],
            group,
            settings,
            committed=options.isolation == "read_committed",
            repartition=options.repartition,
            accept_gaps=options.config.topic_settings(str(p.topic)).gaps == "accept",
            append=options.append,
        )
        for p in wanted
    ]
    sizes = [sum(s.size_bytes for s in p.segments) for p in wanted]
    progress.start("replay", sum(sizes), BYTES)
    report.partitions = each(replay_partition, tasks, "replay", options, report, progress, sizes=sizes)
    progress.close()
    without = sum(p.without_timestamp for p in report.partitions)
    if without:
        report.notes.append(f"{counted(without, 'record')} had no timestamp, or 0, and got the time of this run")
    return report


def target_topics(topics: Sequence[str], renames: Sequence[str]) -> dict[str, str]:
    """Return the target of each topic. UsageError if two topics would come to one."""
    patterns = [Rename.of(text) for text in renames]
    out: dict[str, str] = {}
    taken: dict[str, str] = {}
    for topic in topics:
        target = next((new for one in patterns if (new := one.name(topic)) is not None), topic)
        if target in taken:
            raise UsageError(message=f"--rename: {taken[target]} and {topic} both become {target}: expected one each")
        out[topic], taken[target] = target, topic
    return out


def progress_group(options: ReplayOptions) -> str:
    """Return the group that keeps the progress of this source, if the user names none."""
    source = [None if place is None else normal_uri(place) for place in (options.archive_place, options.store)]
    digest = hashlib.sha256(repr((*source, options.generation, options.isolation)).encode()).hexdigest()
    return f"lastkey-replay-{digest[:16]}"


def check_targets(settings: Mapping[str, str], wanted: Sequence[SourcePartition], targets: Mapping[str, str]) -> None:
    """Raise unless each target is there, has the source's partitions, and keeps timestamps."""
    client = admin_client()
    try:
        admin = client.AdminClient({"log_level": 2, **settings, "error_cb": lambda _: None})
        there = admin.list_topics(timeout=_SECONDS).topics
        _check_partitions({name: len(topic.partitions) for name, topic in there.items()}, wanted, targets)
        names = sorted(set(targets.values()))
        asked = [client.ConfigResource(client.ResourceType.TOPIC, name) for name in names]
        for resource, answer in admin.describe_configs(asked, request_timeout=_SECONDS).items():
            if answer.result()[_TIME_TYPE].value != "CreateTime":
                raise UsageError(
                    message=f"topic {resource.name}: expected {_TIME_TYPE} = CreateTime, found LogAppendTime: records "
                    "would lose their timestamps; nothing was written"
                )
    except (client.KafkaException, ValueError) as error:
        said = describe_client_error(client, error)
        expected = "a cluster that lists its topics"
        raise NO_CLUSTER(path=settings["bootstrap.servers"], expected=expected, found=said) from error


def _check_partitions(
    partition_counts: Mapping[str, int], wanted: Sequence[SourcePartition], targets: Mapping[str, str]
) -> None:
    for source, target in sorted(targets.items()):
        needed = 1 + max(p.partition or 0 for p in wanted if p.topic == source)
        if partition_counts.get(target, 0) < needed:
            found = f"{partition_counts[target]}" if target in partition_counts else "no such topic"
            raise UsageError(
                message=f"topic {target}: expected at least {counted(needed, 'partition')}, found {found}; nothing was "
                "written: make the topic with the settings that it needs"
            )
