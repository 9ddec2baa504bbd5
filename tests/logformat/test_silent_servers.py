"""Connections to servers that say nothing: which are broken, and how whoever waits there learns of it."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator

import pytest

from lastkey.logformat import silent_servers
from lastkey.logformat.silent_servers import close_silent, why_no_answer

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's figures are Linux's")


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def at(server: socket.socket, host: str = "127.0.0.1") -> dict[tuple[str, int], set[str]]:
    return {(host, server.getsockname()[1]): set()}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_who_waits_for_a_silent_server_gets_an_error(server: socket.socket, host: str, monkeypatch) -> None:
    with socket.create_connection(server.getsockname()) as connection:
        said: list[BaseException] = []

        def wait() -> None:
            try:
                connection.recv(1)
            except OSError as error:
                said.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert close_silent(at(server, host)) == 0, "it has not been silent for long"
        monkeypatch.setattr(silent_servers, "SILENT_SECONDS", 0)
        assert close_silent(at(server, host)) == 1
        waiting.join(10)
        assert len(said) == 1, "a proper end would not do"


def test_other_connections_are_left_alone(server: socket.socket, monkeypatch) -> None:
    monkeypatch.setattr(silent_servers, "SILENT_SECONDS", 0)
    with socket.create_server(("127.0.0.1", 0)) as other, socket.create_connection(other.getsockname()) as connection:
        accepted, _ = other.accept()
        with accepted:
            assert close_silent(at(server)) == 0
            assert close_silent({("192.0.2.1", other.getsockname()[1]): set()}) == 0, "another host's, same port"
            accepted.sendall(b"x")
            assert connection.recv(1) == b"x"


def test_a_server_is_asked_for_any_answer(server: socket.socket, monkeypatch) -> None:
    monkeypatch.setattr(silent_servers, "_ASKED_SECONDS", 0.05)
    assert why_no_answer(f"http://127.0.0.1:{server.getsockname()[1]}/x") == "timed out"
