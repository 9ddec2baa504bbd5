from __future__ import annotations

import socket
import threading

import pytest

from lastkey.jobs.errors import BAD_MASTER, ENVIRONMENT, SPARK_NOT_STARTED
from lastkey.jobs.spark import master, session
from lastkey.jobs.spark.submit import UserOptions, user_options
from tests.builders.errors import raises_kind


def error_text(*arguments, kind=BAD_MASTER):
    with raises_kind(kind) as raised:
        master.check_master(user_options(arguments, {}))
    assert raised.value.exit_code == ENVIRONMENT
    return str(raised.value)


@pytest.mark.parametrize(
    "name",
    [
        "local",
        "local[2]",
        "local[*]",
        "local[2, 3]",
        "local[*,4]",
        "local-cluster[2,1,1024]",
        "yarn",
        "k8s://https://a",
    ],
)
def test_masters_known_to_spark_are_accepted(name):
    master.check_master(UserOptions(conf={"spark.master": name}))
    master.check_master(UserOptions())


@pytest.mark.parametrize(
    "name",
    ["local[x]", "local[0]", "local[-1]", "local[]", "locl[2]", "local[2", "localhost", "mesos://a:1", "Yarn", ""],
)
def test_unknown_master_is_refused(name):
    assert error_text("--master", name).startswith("--master: expected local, local[N], ")
    assert error_text("--conf", f"spark.master={name}").endswith(f", found {name}")


@pytest.mark.parametrize(
    "name", ["spark://", "spark://a", "spark://a:b", "spark://a:1,", "spark://a:1,b", "spark:///a:1", "spark://a:65536"]
)
def test_standalone_master_without_host_or_port_is_refused(name):
    assert error_text("--master", name) == f"--master: expected spark://HOST:PORT[,HOST:PORT...], found {name}"


def test_unsupported_masters_are_refused():
    assert "only client mode" in error_text("--deploy-mode", "cluster", kind=SPARK_NOT_STARTED)


def test_master_is_validated_before_spark_starts(monkeypatch, tmp_path):
    monkeypatch.setattr(session.SparkContext, "_active_spark_context", None)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))  # there is none
    with raises_kind(BAD_MASTER):
        session.start(options=UserOptions(conf={"spark.master": "local[x]"}))


def test_every_address_of_a_standalone_master_is_tried(monkeypatch):
    """One master that answers is enough; if none answers, each is named with its reason."""
    released, timeouts = threading.Event(), []

    def connect(address, timeout):
        timeouts.append(timeout)
        if address[0] == "slow":
            released.wait()
        if address[0] == "nowhere":
            raise socket.gaierror(-2, "Name or service not known")
        if address[0] != "here":
            raise ConnectionRefusedError(111, "Connection refused")
        return socket.socket()

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(master, "_ANSWER_SECONDS", 0.2)
    try:
        output = error_text("--master", "spark://nowhere:7077,[::1]:7078,slow:7079")
        assert output == (
            "--master spark://nowhere:7077,[::1]:7078,slow:7079: expected a Spark master that answers, found "
            "nowhere:7077: Name or service not known; ::1:7078: Connection refused; slow:7079: no answer within 0 s"
        )
        master.check_master(UserOptions(conf={"spark.master": "spark://slow:1,nowhere:7077,here:7078"}))
    finally:
        released.set()
    assert set(timeouts) == {0.2}


def test_master_port_without_a_listener_is_an_error():
    with socket.socket() as unused, socket.create_server(("127.0.0.1", 0)) as server:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        closed = f"127.0.0.1:{unused.getsockname()[1]}"
        assert error_text("--master", f"spark://{closed}").endswith(f"found {closed}: Connection refused")
        listening = f"spark://{closed},127.0.0.1:{server.getsockname()[1]}"
        master.check_master(UserOptions(conf={"spark.master": listening}))
