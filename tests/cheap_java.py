"""Options of JVMs that live a minute: half the processor time of a start."""

from __future__ import annotations

import os

CHEAP = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def start_spark_cheaply() -> None:
    """Let Spark's own spark-submit, which users' programs start, give its JVM these options. Our sessions have them."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", CHEAP)
