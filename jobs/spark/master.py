"""Check of the master that the user named, before a JVM is started: its name, and whether a standalone one answers.

Spark takes seconds to reject a name, and a minute and a hundred lines to give up on a host that is not there.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from concurrent.futures import as_completed
from contextlib import suppress
from functools import partial
from typing import Final

from lastkey.jobs.command.stopping import begin
from lastkey.jobs.errors import BAD_MASTER, SPARK_NOT_STARTED
from lastkey.jobs.spark.submit import UserOptions

_LOCAL: Final = re.compile(r"local(?:\[(\*|0*[1-9]\d*)(?:\s*,\s*\d+)?\])?")
_OTHER: Final = re.compile(r"local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|yarn|k8s://.+")  # Spark checks the rest
_STANDALONE: Final = "spark://"
_ADDRESS: Final = re.compile(r"(?P<host>\[[^\]]+\]|[^:/\s]+):(?P<port>\d{1,5})")
_REMOTE: Final = re.compile(r"sc://(?P<host>\[[^\]]+\]|[^:/;@\s]+)(:(?P<port>\d{1,5}))?(/(;.*)?)?")
_CONNECT_PORT: Final = 15002
_ANSWER_SECONDS: Final = 5.0


def is_local(user: UserOptions) -> bool:
    """Return whether Spark's tasks run on this machine."""
    return user.remote is None and (user.master or "local").startswith("local")


def count_local_cores(master: str) -> int | None:
    """Return the number of concurrent tasks of a local master; None: another master."""
    named = _LOCAL.fullmatch(master)
    if named is None:
        return None
    return os.cpu_count() or 1 if named[1] == "*" else int(named[1] or 1)


def check_master(user: UserOptions) -> None:
    """Raise BAD_MASTER if Spark knows no such master, or if no address of a master or of Spark Connect answers. Raise
    SPARK_NOT_STARTED for a mode in which no job runs.
    """
    if user.remote is not None:
        _check_remote(user, user.remote)
        return
    if (mode := user.conf.get("spark.submit.deployMode", "client")) != "client":
        found = f"--deploy-mode {mode}: only client mode returns a job's report and exit code"
        raise SPARK_NOT_STARTED(
            found=f"{found}; for YARN's give the job to Spark's own spark-submit (docs/how-to/cluster.md)"
        )
    master = user.master
    if master is None or count_local_cores(master) is not None or _OTHER.fullmatch(master):
        return
    if not master.startswith(_STANDALONE):
        known = "local, local[N], local[*], spark://HOST:PORT, yarn or k8s://HOST:PORT"
        raise BAD_MASTER(what="--master", expected=known, found=master)
    addresses = [_ADDRESS.fullmatch(part) for part in master.removeprefix(_STANDALONE).split(",")]
    named = [(address["host"].strip("[]"), int(address["port"])) for address in addresses if address]
    if None in addresses or any(port > 65535 for _, port in named):
        raise BAD_MASTER(what="--master", expected="spark://HOST:PORT[,HOST:PORT...]", found=master)
    tried = _failures(named)
    if tried:
        raise BAD_MASTER(what=f"--master {master}", expected="a Spark master that answers", found="; ".join(tried))


def public_address(remote: str) -> str:
    """Return the part of a connection string that messages may show: host and port. The rest may hold a token."""
    found = _REMOTE.match(remote)
    return f"sc://{found['host']}:{found['port'] or _CONNECT_PORT}" if found else "--remote"


def _check_remote(user: UserOptions, remote: str) -> None:
    """Raise BAD_MASTER if no server answers there: Spark would try for ten minutes."""
    match = _REMOTE.fullmatch(remote)
    if match is None or int(match["port"] or 0) > 65535:
        expected = "sc://HOST:PORT[/;NAME=VALUE...] in --remote, spark.remote or SPARK_REMOTE"
        raise BAD_MASTER(what="--remote", expected=expected, found="something else (not shown: it may hold a token)")
    if user.master is not None:
        raise BAD_MASTER(what="--remote and --master", expected="one of the two", found="both")
    tried = _failures([(match["host"].strip("[]"), int(match["port"] or _CONNECT_PORT))])
    if tried:
        what = f"--remote {public_address(remote)}"
        raise BAD_MASTER(what=what, expected="a Spark Connect server that answers", found="; ".join(tried))


def _failures(addresses: Sequence[tuple[str, int]]) -> list[str]:
    """Call all at once and return why none answers; empty if one does."""
    failed = dict.fromkeys(addresses, f"no answer within {_ANSWER_SECONDS:.0f} s")
    calls = {begin(partial(socket.create_connection, address, _ANSWER_SECONDS), "call"): address for address in failed}
    with suppress(TimeoutError):  # a name may take longer to resolve, and no call can cancel that
        for call in as_completed(calls, _ANSWER_SECONDS):
            error = call.exception()
            if error is None:
                call.result().close()
                return []
            failed[calls[call]] = getattr(error, "strerror", None) or str(error)
    return [f"{host}:{port}: {why}" for (host, port), why in failed.items()]
