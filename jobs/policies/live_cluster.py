"""Settings of a running cluster, by Kafka's admin protocol: every topic, and every broker by itself.

The client is confluent-kafka, an optional package (the extra `cluster`). The file of --command-config is the one that
Kafka's own tools take: names are Kafka's, and those that the client has no word for are errors, never ignored: a
connection must not be less safe than the file says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from lastkey.jobs.live_cluster import ClusterError, admin_client, words_of
from lastkey.jobs.policies.cluster_configs import ClusterConfigs
from lastkey.jobs.policies.describe_text import BROKER_LAYER, EVERY_LAYER, Entry, add_broker, add_topic
from lastkey.jobs.policies.errors import CommandConfigError

_SECONDS: Final = 30.0
_TOPICS: Final = 200  # of one request
_JAAS: Final = re.compile(r"\S*(?:PlainLoginModule|ScramLoginModule)\s+required\s+(?P<options>.*);\s*", re.DOTALL)
_OPTION: Final = re.compile(
    r"""(?P<name>\w+)\s*=\s*(?:"(?P<double>(?:\\.|[^"\\])*)"|'(?P<single>[^']*)'|(?P<bare>[^\s;]+))"""
)
# Kafka's word -> the client's; all of them mean the same
_WORDS: Final = {
    "security.protocol": "security.protocol",
    "sasl.mechanism": "sasl.mechanisms",
    "sasl.kerberos.service.name": "sasl.kerberos.service.name",
    "ssl.keystore.password": "ssl.keystore.password",
    "ssl.key.password": "ssl.key.password",
    "ssl.cipher.suites": "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm": "ssl.endpoint.identification.algorithm",
    "client.id": "client.id",
    "request.timeout.ms": "socket.timeout.ms",
    "connections.max.idle.ms": "connections.max.idle.ms",
    "reconnect.backoff.ms": "reconnect.backoff.ms",
    "reconnect.backoff.max.ms": "reconnect.backoff.max.ms",
}
_STORES: Final = {  # (file, its type in capitals) -> the client's words
    ("ssl.truststore", "PEM"): ("ssl.ca.location",),
    ("ssl.keystore", "PEM"): ("ssl.certificate.location", "ssl.key.location"),
    ("ssl.keystore", "PKCS12"): ("ssl.keystore.location",),
}
_PEM: Final = {  # contents of PEM files, as Kafka takes them in the file itself
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}


def client_settings(bootstrap: str, properties: Mapping[str, str], path: str) -> dict[str, str]:
    """Return the client's settings for Kafka's. Raise CommandConfigError for one that it has no word for."""
    given = {name: value for name, value in properties.items() if name != "bootstrap.servers"}
    out = {"bootstrap.servers": bootstrap}
    for store in ("ssl.truststore", "ssl.keystore"):
        location, kind = given.pop(f"{store}.location", None), given.pop(f"{store}.type", "JKS").upper()
        inline = any(name.startswith((f"{store}.cert", f"{store}.key")) for name in given)
        if location is not None and (store, kind) in _STORES:
            out |= dict.fromkeys(_STORES[store, kind], location)
        elif location is not None:
            known = " or ".join(kind for of, kind in _STORES if of == store)
            expected = f"{known} (the client reads no other; keytool and openssl convert)"
            raise CommandConfigError(path=path, setting=f"{store}.type", expected=expected, found=kind)
        elif inline and kind != "PEM":
            raise CommandConfigError(path=path, setting=f"{store}.type", expected="PEM", found=kind)
    for name, value in given.items():
        if name == "sasl.jaas.config":
            out |= _login(value, path)
        elif name in _PEM:
            out[_PEM[name]] = value
        elif name in _WORDS:
            out[_WORDS[name]] = value
        else:
            expected = f"one of {', '.join(sorted([*_WORDS, *_PEM, 'sasl.jaas.config']))}"
            raise CommandConfigError(
                path=path, setting=name, expected=expected, found="a name the client has no word for"
            )
    if out.get("ssl.endpoint.identification.algorithm") == "":
        out["ssl.endpoint.identification.algorithm"] = "none"
    return out


def add_live(bootstrap: str, properties: Mapping[str, str], path: str, configs: ClusterConfigs) -> None:
    """Ask a cluster, and add what it says. Raise NoClientError, ClusterError."""
    settings = client_settings(bootstrap, properties, path) | {"log_level": "0"}  # error_cb hears of all that matters
    client = admin_client()
    errors: list[str] = []
    try:
        cluster = client.AdminClient({**settings, "error_cb": lambda error: errors.append(str(error.str()))})
    except (client.KafkaException, ValueError) as error:
        raise CommandConfigError(
            path=path or "--bootstrap-server",
            setting="a value",
            expected="one that the client takes",
            found=words_of(client, error),
        ) from None
    try:
        _ask(client, cluster, bootstrap, configs)
    except client.KafkaException as error:
        cluster.poll(0.1)  # calls error_cb
        found = "; ".join(dict.fromkeys([words_of(client, error), *errors[-1:]]))
        raise ClusterError(path=bootstrap, expected="a cluster that describes its settings", found=found) from None


def _ask(client: Any, cluster: Any, bootstrap: str, configs: ClusterConfigs) -> None:
    metadata = cluster.list_topics(timeout=_SECONDS)
    topics = sorted(metadata.topics)
    for at in range(0, len(topics), _TOPICS):
        for name, entries in _described(client, cluster, client.ResourceType.TOPIC, topics[at : at + _TOPICS]):
            add_topic(configs, name, entries, bootstrap, resolved=True)
    for broker in sorted(map(str, metadata.brokers), key=int):
        for name, entries in _described(client, cluster, client.ResourceType.BROKER, [broker]):
            add_broker(configs, name, entries, bootstrap, complete=True)


def _described(client: Any, cluster: Any, kind: Any, names: list[str]) -> Iterator[tuple[str, list[Entry]]]:
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


def _entry(client: Any, one: Any) -> Entry:
    layer = client.ConfigSource(one.source).name
    if layer == EVERY_LAYER:  # hidden where a broker has its own value, so it cannot stand for all brokers
        layer = BROKER_LAYER
    return Entry(one.name, one.value, () if one.value is None else ((layer, one.name, one.value),))


def _login(text: str, path: str) -> dict[str, str]:
    """Return user and password of a sasl.jaas.config for PLAIN or SCRAM. Nothing of its text is shown: it is secret."""
    found = _JAAS.fullmatch(text.strip())
    options = {} if found is None else {m["name"]: _option(m) for m in _OPTION.finditer(found["options"])}
    if not {"username", "password"} <= set(options):
        expected = 'PlainLoginModule or ScramLoginModule required username="..." password="...";'
        raise CommandConfigError(path=path, setting="sasl.jaas.config", expected=expected, found="another text")
    return {"sasl.username": options["username"], "sasl.password": options["password"]}


def _option(found: re.Match[str]) -> str:
    double = found["double"]
    return re.sub(r"\\(.)", r"\1", double) if double is not None else found["single"] or found["bare"] or ""
