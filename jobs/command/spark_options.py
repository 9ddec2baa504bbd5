"""Options of spark-submit: they stand before the job's name, and the job's own behind it."""

from __future__ import annotations

from typing import Final

# Take no value; every other one takes one
SWITCHES: Final = ("--supervise", "--verbose", "-v", "--load-spark-defaults")
WITH_VALUE: Final = (
    "--master", "--remote", "--deploy-mode", "--name", "--conf", "-c", "--properties-file", "--jars", "--packages",
    "--exclude-packages", "--repositories", "--py-files", "--files", "--archives", "--driver-memory", "--driver-cores",
    "--driver-java-options", "--driver-library-path", "--driver-class-path", "--executor-memory", "--executor-cores",
    "--num-executors", "--total-executor-cores", "--proxy-user", "--principal", "--keytab", "--queue", "--class",
)  # fmt: skip
OF_SPARK: Final = frozenset((*SWITCHES, *WITH_VALUE))
