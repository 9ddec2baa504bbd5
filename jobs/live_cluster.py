"""The client of live clusters, confluent-kafka: an optional package, the extra `cluster`."""

from __future__ import annotations

import importlib
from typing import Any

from lastkey.jobs.errors import MachineError


class NoClientError(MachineError):
    """The optional client of live clusters, which is not installed."""

    template = "--bootstrap-server needs the package confluent-kafka: {found}"
    hint = "install it beside Lastkey: pip install 'lastkey[cluster]'"


class ClusterError(MachineError):
    """A cluster that cannot be asked."""

    template = "{path}: expected {expected}, found {found}"
    hint = "check --bootstrap-server, the settings of the connection, and what this user may do there"


def admin_client() -> Any:
    """Import confluent_kafka.admin. Raise NoClientError."""
    try:
        return importlib.import_module("confluent_kafka.admin")
    except ImportError as error:
        raise NoClientError(found=str(error)) from error


def words_of(client: Any, error: Exception) -> str:
    """Return what the cluster said, of the client's own exception, or the text of another one."""
    return str(error.args[0].str() if isinstance(error, client.KafkaException) else error)
