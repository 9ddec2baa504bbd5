"""Settings of a running cluster, by Kafka's admin protocol: every topic, and every broker by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lastkey.jobs.errors import BAD_COMMAND_CONFIG, NO_CLUSTER
from lastkey.jobs.live_cluster import admin_client, client_settings, describe_client_error
from lastkey.jobs.policies.cluster_configs import (
    BROKER_LAYER,
    EVERY_LAYER,
    ClusterConfigs,
    ConfigEntry,
    add_broker,
    add_topic,
)

_SECONDS: Final = 30.0
_TOPICS: Final = 200  # topics in one request


def add_live(bootstrap: str, path: str | None, configs: ClusterConfigs) -> None:
    """Read the configuration of a running cluster and add it to configs. path: of --command-config. Raise NO_CLIENT,
    NO_CLUSTER.
    """
    settings = client_settings(bootstrap, path) | {"log_level": "0"}  # error_cb receives all relevant errors
    client = admin_client()
    errors: list[str] = []
    try:
        cluster = client.AdminClient({**settings, "error_cb": lambda error: errors.append(str(error.str()))})
    except (client.KafkaException, ValueError) as error:
        raise BAD_COMMAND_CONFIG(
            path=path or "--bootstrap-server",
            setting="a value",
            expected="one that the client takes",
            found=describe_client_error(client, error),
        ) from None
    try:
        _read_configs(client, cluster, bootstrap, configs)
    except client.KafkaException as error:
        cluster.poll(0.1)  # calls error_cb
        found = "; ".join(dict.fromkeys([describe_client_error(client, error), *errors[-1:]]))
        raise NO_CLUSTER(path=bootstrap, expected="a cluster that describes its settings", found=found) from None


def _read_configs(client: Any, cluster: Any, bootstrap: str, configs: ClusterConfigs) -> None:
    metadata = cluster.list_topics(timeout=_SECONDS)
    topics = sorted(metadata.topics)
    for at in range(0, len(topics), _TOPICS):
        for name, entries in _described(client, cluster, client.ResourceType.TOPIC, topics[at : at + _TOPICS]):
            add_topic(configs, name, entries, bootstrap, resolved=True)
    replicas = {n for topic in metadata.topics.values() for one in topic.partitions.values() for n in one.replicas}
    if gone := sorted(replicas - metadata.brokers.keys()):
        numbers = ", ".join(map(str, gone))
        configs.notes.append(f"not running: brokers {numbers}; settings that only they have are missing")
    for broker in sorted(map(str, metadata.brokers), key=int):
        for name, entries in _described(client, cluster, client.ResourceType.BROKER, [broker]):
            add_broker(configs, name, entries, bootstrap, complete=True)


def _described(client: Any, cluster: Any, kind: Any, names: list[str]) -> Iterator[tuple[str, list[ConfigEntry]]]:
    """Yield each resource with its settings. Layers come from sources: the client keeps one synonym of a name."""
    wanted = [client.ConfigResource(kind, name) for name in names]
    for resource, answer in cluster.describe_configs(wanted, request_timeout=_SECONDS).items():
        try:
            settings = answer.result()
        except client.KafkaException as error:
            if error.args[0].name() == "UNKNOWN_TOPIC_OR_PART":
                continue  # deleted since it was listed
            raise
        yield resource.name, [_entry(client, one) for one in settings.values()]


def _entry(client: Any, entry: Any) -> ConfigEntry:
    layer = client.ConfigSource(entry.source).name
    if layer == EVERY_LAYER:  # hidden where a broker has its own value, so it cannot stand for all brokers
        layer = BROKER_LAYER
    return ConfigEntry(entry.name, entry.value, () if entry.value is None else ((layer, entry.name, entry.value),))
