"""Policies from a real cluster: every source gives the settings that its brokers report for each topic."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from unittest import mock

import pytest
from confluent_kafka.admin import AdminClient
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pyarrow import fs as pafs

from lastkey.jobs.command import cli
from lastkey.jobs.command.config import LEAST_INDEX_BYTES, load_config
from lastkey.jobs.errors import DONE, ENVIRONMENT, USAGE
from lastkey.jobs.live_cluster import client_settings
from lastkey.jobs.policies import live_cluster
from lastkey.jobs.policies.cluster_configs import KAFKA_DEFAULTS, SYNONYMS
from lastkey.udfs.cluster_metadata.log_files import FOLDER, list_metadata, read_metadata
from tests.kafka_lab import Broker
from tests.kafka_lab.broker import free_ports
from tests.kafka_lab.jars import java_tool
from tests.kafka_lab.oracle import alter_configs, create_topics, delete_topics, describe_configs, kafka_configs
from tests.kafka_lab.waiting import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TOPICS = 14
BROKER = {
    "log.retention.ms": 432_000_000, "log.retention.hours": 5, "log.index.interval.bytes": 8192,
    "log.cleaner.min.compaction.lag.ms": 17, "metadata.log.max.snapshot.interval.ms": 1000,
}  # fmt: skip
DRAWN = {
    "cleanup.policy": ("compact", "delete", "compact,delete", "delete,compact", ""),
    "delete.retention.ms": (0, 1000, 86_400_000),
    "index.interval.bytes": (0, 4096),
    "max.compaction.lag.ms": (100, 2**63 - 1),
    "min.cleanable.dirty.ratio": (0, 0.01, "0.50", 1),
    "min.compaction.lag.ms": (0, 50),
    "retention.bytes": (-1, 0, 10**12),
    "retention.ms": (-1, 0, 604_800_000),
    "segment.bytes": (1 << 20, 1 << 30),
    "segment.index.bytes": (4, 1000),
}
OTHERS = {"max.message.bytes": 2_000_000, "compression.type": "zstd", "flush.messages": 9}


LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


class SecureBroker(Broker):
    """A broker with one more listener, by TLS and SASL/PLAIN."""

    def _settings(self) -> dict[str, object]:
        settings = super()._settings()
        self.secure = f"127.0.0.1:{free_ports(1)[0]}"
        key, self.certificate = key_and_certificate()
        settings["listeners"] = f"{settings['listeners']},SECURE://{self.secure}"
        settings["advertised.listeners"] = f"{settings['advertised.listeners']},SECURE://{self.secure}"
        of = "listener.name.secure"
        return settings | {
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
            "inter.broker.listener.name": "PLAINTEXT",
            f"{of}.sasl.enabled.mechanisms": "PLAIN",
            f"{of}.plain.sasl.jaas.config": f'{LOGIN} user_reader="top secret";',
            f"{of}.ssl.keystore.type": "PEM",
            f"{of}.ssl.keystore.key": key.replace("\n", "\\n"),
            f"{of}.ssl.keystore.certificate.chain": self.certificate.replace("\n", "\\n"),
        }


def key_and_certificate() -> tuple[str, str]:
    """Return a new key, and the certificate that it signs for 127.0.0.1, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lab")])
    now = datetime.now(UTC)
    here = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(here, critical=False).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return private.decode(), made.public_bytes(serialization.Encoding.PEM).decode()


@dataclass
class Cluster:
    """A cluster's own words, its files, and what it says of each topic."""

    folder: Path
    described: dict[str, dict[str, str]]
    live: dict[str, str]  # policies that were asked of it while it ran, by kind of connection
    refused: tuple[int, str]  # exit code and message for a wrong password

    def path(self, name: str) -> str:
        return str(self.folder / name)

    @property
    def newest_snapshot(self) -> Path:
        return max((self.folder / "meta" / FOLDER).glob("*.checkpoint"))


def drawn(rng: random.Random) -> dict[str, object]:
    names = rng.sample(sorted(DRAWN), rng.randrange(len(DRAWN)))
    others = rng.sample(sorted(OTHERS), rng.randrange(len(OTHERS)))
    return {name: rng.choice(DRAWN[name]) for name in names} | {name: OTHERS[name] for name in others}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Cluster:
    rng, folder = random.Random(32), tmp_path_factory.mktemp("cluster")
    with SecureBroker(folder, BROKER) as broker:
        at = broker.bootstrap
        for n in range(TOPICS):
            create_topics(at, {f"topic.{n}": 1}, drawn(rng))
        create_topics(at, {"plain": 1}, {})
        delete_topics(at, ["topic.0", "topic.1", "topic.2"])
        create_topics(at, {"topic.1": 1}, drawn(rng))
        create_topics(at, {"topic.2": 1}, {})
        for n in range(3, 8):
            alter_configs(at, "TOPIC", f"topic.{n}", drawn(rng) | {"delete.retention.ms": 5})
        alter_configs(at, "TOPIC", "topic.7", {"delete.retention.ms": None})
        every = {"log.cleaner.delete.retention.ms": 1234, "log.retention.ms": 777, "log.retention.bytes": 4_000_000}
        alter_configs(at, "BROKER", "", every | {"message.max.bytes": 3_000_000})
        alter_configs(at, "BROKER", "", {"log.retention.bytes": None})
        alter_configs(at, "BROKER", "1", {"log.retention.ms": 86_400_000, "log.segment.bytes": 7_000_000})
        names = [f"topic.{n}" for n in range(1, TOPICS)] + ["plain"]
        (folder / "topics").write_text(kafka_configs(at, "--entity-type", "topics", "--describe"))
        (folder / "topics-all").write_text(kafka_configs(at, "--entity-type", "topics", "--describe", "--all"))
        (folder / "brokers").write_text(kafka_configs(at, "--entity-type", "brokers", "--describe"))
        broker_1 = kafka_configs(at, "--entity-type", "brokers", "--entity-name", "1", "--describe", "--all")
        (folder / "brokers-all").write_text(broker_1)
        described = describe_configs(at, "TOPIC", names)
        live = {"plain": policies(folder, "--bootstrap-server", at)}
        (folder / "ca.pem").write_text(broker.certificate)
        secure = ["--bootstrap-server", broker.secure, "--command-config", str(folder / "client")]
        login = f"{LOGIN} {{}};"
        client = {
            "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "ssl.truststore.type": "PEM",
            "ssl.truststore.location": folder / "ca.pem",
            "sasl.jaas.config": login.format('username="reader" password="top secret"'),
        }  # fmt: skip
        write_properties(folder / "client", client)
        live["TLS and SASL"] = policies(folder, *secure)
        write_properties(
            folder / "client", client | {"sasl.jaas.config": login.format("username=reader password=wrong1")}
        )
        with contextlib.redirect_stderr(io.StringIO()) as stderr, mock.patch.object(live_cluster, "_SECONDS", 2.0):
            refused = cli.main(["policies", *secure]), stderr.getvalue()
        files = list_metadata(pafs.LocalFileSystem(), str(folder / "meta"))
        end = read_metadata(files).end_offset
        done = Cluster(folder, described, live, refused)
        wait_until(lambda: int(done.newest_snapshot.name[:20]) >= end, "a snapshot of it all", seconds=30)
    return done


def write_properties(path: Path, settings: Mapping[str, object]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


def policies(folder: Path, *words: str) -> str:
    """Return the text that the command writes."""
    out = folder / "policies.toml"
    assert cli.main(["policies", *words, "--output", str(out), "--replace"]) == DONE
    return out.read_text()


def tables(text: str) -> str:
    return text[text.index("[topics.") :]


@pytest.fixture(scope="module")
def expected(cluster) -> str:
    return tables(policies(cluster.folder, cluster.path("topics-all")))


def test_policies_equal_the_described_settings_of_the_brokers(cluster, expected):
    path = cluster.folder / "expected.toml"
    path.write_text(expected)
    config = load_config(path)
    assert set(config.topics) == set(cluster.described)
    for topic, described in cluster.described.items():
        ours = config.topic_settings(topic)
        policy = sorted(filter(None, described["cleanup.policy"].split(",")))
        assert list(ours.cleanup_policy) == (policy or ["delete"])
        limits = {
            name: max(int(described[name]), -1) if "delete" in policy else -1
            for name in ("retention.ms", "retention.bytes")
        }
        plain = {name: described[name] for name in SYNONYMS if name in described and name != "cleanup.policy"} | limits
        for name, value in plain.items():
            number = float(value) if name == "min.cleanable.dirty.ratio" else int(value)
            if name == "segment.index.bytes":
                number = max(number, LEAST_INDEX_BYTES)
            assert getattr(ours, name.replace(".", "_")) == number, (topic, name)


def test_each_source_gives_the_same_settings(cluster, expected):
    properties = cluster.path("server.properties")
    sources = {
        "topics and brokers": [cluster.path("topics"), cluster.path("brokers-all")],
        "topics, brokers without --all, and their file": [cluster.path("topics"), cluster.path("brokers"), properties],
        "topics with --all, brokers without": [cluster.path("topics-all"), cluster.path("brokers")],
        "all of both": [cluster.path("brokers-all"), cluster.path("topics-all")],
        "the metadata folder": [cluster.path("meta"), properties],
        "its snapshot": [str(cluster.newest_snapshot), properties],
        "its log": [*map(str, (cluster.folder / "meta" / FOLDER).glob("*.log")), properties],
        "everything at once": [*map(cluster.path, ("topics", "brokers-all", "meta")), properties],
    }
    for name, files in sources.items():
        assert tables(policies(cluster.folder, *files)) == expected, name
    for connection, text in cluster.live.items():
        assert tables(text) == expected, connection


def test_java_key_stores_are_converted_for_the_client(tmp_path, capsys):
    """The commands in the error message create valid files, also with passwords; the client accepts these files."""
    key = ["-alias", "k", "-keyalg", "RSA", "-dname", "CN=lab", "-storetype", "JKS", "-storepass", "secret"]
    store, file = tmp_path / "store.jks", tmp_path / "client"
    tool = java_tool("keytool")
    subprocess.run(
        [tool, "-genkeypair", "-keystore", store, "-keypass", "secret", *key], check=True, capture_output=True
    )
    properties = {"security.protocol": "SSL"}
    for kind, passwords in {
        "ssl.truststore": ["-storepass", "secret"],
        "ssl.keystore": ["-srcstorepass", "secret", "-deststorepass", "secret"],
    }.items():
        write_properties(file, properties | {f"{kind}.location": store})
        assert cli.main(["policies", "--bootstrap-server", "127.0.0.1:1", "--command-config", str(file)]) == USAGE
        command, name, made = re.search(
            r"make one: keytool (.*?)(?: >| -destkeystore) (\S+).*; give (\S+)\)", capsys.readouterr().err
        ).groups()
        path = tmp_path / name
        out = [] if kind == "ssl.truststore" else ["-destkeystore", path, "-deststoretype", "PKCS12"]
        completed = subprocess.run([tool, *command.split(), *out, *passwords], check=True, capture_output=True)
        if kind == "ssl.truststore":
            path.write_bytes(completed.stdout)
        properties |= {f"{kind}.location": path, **dict([made.split("=")])}
    properties["ssl.keystore.password"] = "secret"
    write_properties(file, properties)
    AdminClient(client_settings("127.0.0.1:1", str(file)))  # it reads them at once, and raises for others


def test_refused_login_is_reported_without_its_password(cluster):
    code, message = cluster.refused
    assert code == ENVIRONMENT
    assert "SASL authentication error" in message and "wrong1" not in message


def test_default_settings_equal_those_of_the_broker(cluster):
    """Compare with a broker described with --all, where each default is stated; without, ours is taken."""
    stated = [line.strip() for line in (cluster.folder / "brokers-all").read_text().splitlines()]
    for setting, names in SYNONYMS.items():
        name, unit = names[-1]
        [line] = [line for line in stated if line.startswith(f"{name}=")]
        default = line.partition(f"DEFAULT_CONFIG:{name}=")[2].rstrip("}")
        known = KAFKA_DEFAULTS[setting]
        assert known == (int(default) * unit if isinstance(known, int) else type(known)(default)), setting


def test_ignored_settings_are_named(cluster, capsys):
    assert cli.main(["policies", cluster.path("topics"), cluster.path("brokers-all"), "--json"]) == DONE
    output = json.loads(capsys.readouterr().out)
    assert "dynamic settings of brokers without effect here: message.max.bytes, min.insync.replicas" in output["notes"]
    topics = {entry["topic"]: entry for entry in output["topics"]}
    for topic, entry in topics.items():
        own = {name for name in OTHERS if cluster.described[topic][name] == str(OTHERS[name])}
        assert own <= set(entry["ignored_settings"]), topic


def test_damaged_metadata_is_an_error_or_changes_nothing(cluster, expected, tmp_path, capsys):
    """Any byte of the snapshot or the log, and any cut of the snapshot: never other tables."""
    rng, refused = random.Random(7), 0
    log = next((cluster.folder / "meta" / FOLDER).glob("*.log"))
    properties = cluster.path("server.properties")
    whole = policies(cluster.folder, str(log), properties)
    for n in range(300):
        path = tmp_path / (cluster.newest_snapshot, log)[n % 2].name
        shutil.copy((cluster.newest_snapshot, log)[n % 2], path)
        data = bytearray(path.read_bytes())
        if n % 6 == 0:
            del data[rng.randrange(len(data)) :]
        else:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        out = tmp_path / f"{n}.toml"
        code = cli.main(["policies", str(path), properties, "--output", str(out)])
        assert code in (DONE, USAGE)
        assert out.exists() == (code == DONE)
        refused += code == USAGE
        if code == DONE:
            assert tables(out.read_text()) == expected
        path.unlink()
    assert refused > 200
    assert tables(whole) == expected
    capsys.readouterr()
