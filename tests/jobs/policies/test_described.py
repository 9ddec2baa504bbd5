"""Policies from text: kafka-configs' output, server.properties, and what contradicts itself."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from lastkey.jobs.command import cli
from lastkey.jobs.command.config import load_config
from lastkey.jobs.command.parse import parse_properties
from lastkey.jobs.errors import DONE, ENVIRONMENT, USAGE
from lastkey.jobs.live_cluster import client_settings

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "archive"
TOPICS = """\
Dynamic configs for topic orders are:
  cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete, DEFAULT_CONFIG:log.cleanup.policy=delete}
  retention.ms=5000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5000, STATIC_BROKER_CONFIG:log.retention.ms=9}
  max.message.bytes=7 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:max.message.bytes=7}
Dynamic configs for topic keys are:
  cleanup.policy=compact sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact}
  retention.bytes=100 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.bytes=100}
Dynamic configs for topic plain are:
"""  # noqa: E501 - as the tool prints them
BROKER = """\
All configs for broker {id} are:
  log.retention.hours={hours} sensitive=false synonyms={{STATIC_BROKER_CONFIG:log.retention.hours={hours}, DEFAULT_CONFIG:log.retention.hours=168}}
  sasl.jaas.config=null sensitive=true synonyms={{DYNAMIC_BROKER_CONFIG:sasl.jaas.config=null}}
"""  # noqa: E501


@pytest.fixture
def given(tmp_path):
    def write(**texts):
        paths = []
        for name, text in texts.items():
            path = tmp_path / name
            path.write_text(text)
            paths.append(str(path))
        return paths

    return write


def run_command(capsys, *words, job="policies"):
    code = cli.main([job, *words])
    output = capsys.readouterr()
    return code, output.out, output.err


def test_each_topic_has_a_settings_table(given, capsys, tmp_path):
    code, text, _ = run_command(capsys, *given(topics=TOPICS, broker=BROKER.format(id=1, hours=2)), "--json")
    assert code == DONE
    report = json.loads(text)
    assert {topic["topic"]: (topic["settings"], topic["ignored_settings"]) for topic in report["topics"]} == {
        "keys": ({"cleanup.policy": "compact"}, ["retention.bytes"]),
        "orders": ({"cleanup.policy": "compact,delete", "retention.ms": 5000}, ["max.message.bytes"]),
        "plain": ({"cleanup.policy": "delete", "retention.ms": 7_200_000}, []),
    }
    out = tmp_path / "out.toml"
    assert cli.main(["policies", *given(topics=TOPICS, broker=BROKER.format(id=1, hours=2)), "--output", str(out)]) == 0
    assert load_config(out).topic_settings("plain").retention_ms == 7_200_000
    assert not load_config(out).topic_settings("of another cluster").acts
    assert cli.main(["policies", *given(topics=TOPICS), "--output", str(out)]) == USAGE
    assert "expected no such file yet" in capsys.readouterr().err


def test_stdout_is_a_valid_settings_file(given, capsys):
    code, text, _ = run_command(capsys, *given(topics=TOPICS), "--topics", "k*", "--no-retention")
    assert code == DONE
    assert tomllib.loads(text)["topics"] == {"keys": {"cleanup.policy": "compact"}}
    assert (
        "# note: no source shows what brokers have in their files; Kafka's defaults stand for cleanup.policy, " in text
    )
    assert "# without effect here: retention.bytes" in text


def test_brokers_that_disagree_are_named(given, capsys):
    brokers = BROKER.format(id=1, hours=2) + BROKER.format(id=2, hours=3)
    code, _, output = run_command(capsys, *given(topics=TOPICS, brokers=brokers))
    assert code == USAGE
    assert "retention.ms: expected one value of all brokers, because topic plain has none of its own" in output
    assert "found 7200000 (broker 1); 10800000 (broker 2)" in output


def test_server_properties_apply_to_all_brokers_or_to_one(given, capsys):
    brokers = "Dynamic configs for broker 1 are:\nDynamic configs for broker 2 are:\n"
    one = "node.id=1\nlog.retention.hours = 1\nlog.retention.minutes : 3\nlog.segment.bytes=\\\n  2048\n"
    code, text, _ = run_command(capsys, *given(topics=TOPICS, brokers=brokers, one=one))
    assert code == DONE
    plain = tomllib.loads(text)["topics"]["plain"]
    assert plain == {"cleanup.policy": "delete", "retention.ms": 180_000, "segment.bytes": 2048}
    two = one.replace("node.id=1", "node.id=2")
    assert run_command(capsys, *given(topics=TOPICS, brokers=brokers, one=one, two=two))[0] == DONE
    code, _, output = run_command(
        capsys, *given(topics=TOPICS, brokers=brokers + brokers.replace("2", "3"), one=one, two=two)
    )
    assert code == USAGE and "no server.properties of broker 3" in output


def test_empty_policy_keeps_all_records(given, capsys):
    none = "cleanup.policy= sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=}"
    code, text, _ = run_command(capsys, *given(topics=f"Dynamic configs for topic t are:\n  {none}\n"))
    assert code == DONE
    assert tomllib.loads(text)["topics"] == {"t": {"cleanup.policy": "delete"}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (TOPICS + "  retention.ms=5\n", "line 9: expected the end of the line"),
        (TOPICS.replace(" sensitive=false", ""), "line 2: expected the end of the line"),
        (TOPICS + "  x=1\n" + 10_000 * "y\n", "line 9: expected the end of the line"),
        ("Dynamic configs for topic a/b are:\n", "expected the name of a topic, found 'a/b'"),
        ("Dynamic configs for topic t are:\nWARN something\n", "line 2: expected NAME=VALUE"),
        (TOPICS + TOPICS.replace("5000", "6000"), "found another retention.ms"),
        (TOPICS.replace("retention.ms=5000", "retention.ms=5 s"), "retention.ms: expected a number, found 5 s"),
        (TOPICS.replace("retention.ms=5000", "retention.ms=1" + 19 * "0"), "a whole number from -1 to"),
        ("hello\n", "expected the output of kafka-configs --describe"),
        ("a=b\n", "expected the output of kafka-configs --describe"),
        ("", "expected the output of kafka-configs --describe"),
        ("Dynamic configs for broker 1 are:\n", "expected topics with their settings, found none"),
    ],
)
def test_unexpected_text_is_refused_with_its_line(given, capsys, text, expected):
    code, out, output = run_command(capsys, *given(file=text))
    assert (code, out) == (USAGE, "")
    assert expected in output


def test_settings_of_other_entities_are_noted(given, capsys):
    text = TOPICS + "Dynamic configs for client-metrics m are:\n  a=b sensitive=false synonyms={}\n"
    code, out, _ = run_command(capsys, *given(file=text))
    assert code == DONE
    assert "settings of client-metrics m have no effect here" in out


def test_value_may_have_several_lines(given, capsys):
    text = (
        BROKER.format(id=1, hours=2) + "  x=a\nb = c\n sensitive=false synonyms={STATIC_BROKER_CONFIG:x=a\nb = c\n}\n"
    )
    assert run_command(capsys, *given(topics=TOPICS, broker=text))[0] == DONE


def test_properties_are_read_as_java_reads_them():
    text = "# no\n! no\n a = b \\\n   c\nd:e\nf g\nh\n\\u0041\\=x=y\\tz\n"
    assert parse_properties(text, "f") == {"a": "b c", "d": "e", "f": "g", "h": "", "A=x": "y\tz"}


def test_connection_properties_of_kafka_are_translated(tmp_path):
    login = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p\\"w";'
    properties = {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": login,
        "ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem", "ssl.endpoint.identification.algorithm": "",
        "ssl.keystore.type": "PKCS12", "ssl.keystore.location": "/k.p12", "ssl.keystore.password": "s",
        "bootstrap.servers": "other:1", "request.timeout.ms": "9", "max.request.size": "7", "compression.type": "lz4",
    }  # fmt: skip
    file = tmp_path / "connection"
    file.write_text("\n".join(f"{name}={value}" for name, value in properties.items()).replace('\\"', '\\\\"'))
    assert client_settings("h:1", str(file)) == {
        "bootstrap.servers": "h:1", "security.protocol": "SASL_SSL", "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "u", "sasl.password": 'p"w', "ssl.ca.location": "/ca.pem",
        "ssl.endpoint.identification.algorithm": "none", "ssl.keystore.location": "/k.p12",
        "ssl.keystore.password": "s", "socket.timeout.ms": "9", "message.max.bytes": "7", "compression.type": "lz4",
    }  # fmt: skip
    assert client_settings("h:1", None) == {"bootstrap.servers": "h:1"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ssl.truststore.location", "/store.jks"),
        ("sasl.jaas.config", "OAuthBearerLoginModule required secret=top;"),
        ("sasl.login.callback.handler.class", "top.Secret"),
        ("ssl.provider", "secret"),
    ],
)
def test_connection_weaker_than_requested_is_refused(given, capsys, name, value):
    options = ("--bootstrap-server", "127.0.0.1:1", "--command-config", *given(c=f"{name}={value}"))
    code, _, output = run_command(capsys, *options)
    assert code == USAGE
    assert name.rpartition(".")[0] in output and "ecret" not in output.replace("OAuth", "")
    code, _, of_replay = run_command(capsys, str(EXAMPLE), *options, job="replay")
    assert (code, of_replay) == (USAGE, output)


def test_options_without_their_counterpart_are_refused(given, capsys):
    assert run_command(capsys)[0] == USAGE
    assert run_command(capsys, *given(t=TOPICS), "--command-config", "x")[0] == USAGE
    assert run_command(capsys, "no such file")[0] == USAGE


def test_unresponsive_cluster_is_an_error(capsys, monkeypatch):
    monkeypatch.setattr("lastkey.jobs.policies.live_cluster._SECONDS", 0.2)
    code, _, output = run_command(capsys, "--bootstrap-server", "127.0.0.1:1")
    assert code == ENVIRONMENT
    assert "127.0.0.1:1: expected a cluster that describes its settings" in output


def test_invalid_bootstrap_server_is_an_error(capsys, monkeypatch):
    monkeypatch.setattr("lastkey.jobs.policies.live_cluster._SECONDS", 0.2)
    code, _, output = run_command(capsys, "--bootstrap-server", ":::")
    assert code in (USAGE, ENVIRONMENT)
    assert "--bootstrap-server" in output and "Traceback" not in output


def test_missing_client_error_names_the_package(capsys, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "confluent_kafka.admin", None)
    code, _, output = run_command(capsys, "--bootstrap-server", "127.0.0.1:1")
    assert code == ENVIRONMENT
    assert "needs the package confluent-kafka" in output
