"""Spark Connect server from the jars of the package: `python -m tests.jobs.spark.connect_server`.

Prints its port, and ends when its stdin does. Its session is one of ours, and so has Delta.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lastkey.jobs.spark import session
from lastkey.jobs.spark.submit import UserOptions

ROOT = Path(__file__).resolve().parents[3]
_SERVER = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}


def main() -> None:
    os.environ["PYTHONPATH"] = str(ROOT)
    spark = session.start(
        "connect-server", options=UserOptions(("--master", "local[2]"), {"spark.master": "local[2]"}), conf=_SERVER
    )
    service = getattr(spark._jvm.org.apache.spark.sql.connect.service, "SparkConnectService$")
    print(getattr(service, "MODULE$").localPort(), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
