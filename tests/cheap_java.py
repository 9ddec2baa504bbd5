"""Options of JVMs that live a minute: half the processor time of a start."""

from __future__ import annotations

import os

CHEAP = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def start_java_cheaply() -> None:
    """Let Spark's own spark-submit, which users' programs start, give its JVM these options, and the lab its own. Our
    sessions have them.
    """
    os.environ.setdefault("SPARK_SUBMIT_OPTS", CHEAP)
    os.environ.setdefault("LASTKEY_LAB_OPTIONS", CHEAP)  # see tests.kafka_lab.jvm; measurements go without
