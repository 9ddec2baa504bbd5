"""Options of spark-submit: they stand before the job's name, and the job's own behind it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from lastkey.jobs.command.reporting import Work

# Take no value; every other one takes one
SWITCHES: Final = ("--supervise", "--verbose", "-v", "--load-spark-defaults")
WITH_VALUE: Final = (
    "--master", "--remote", "--deploy-mode", "--name", "--conf", "-c", "--properties-file", "--jars", "--packages",
    "--exclude-packages", "--repositories", "--py-files", "--files", "--archives", "--driver-memory", "--driver-cores",
    "--driver-java-options", "--driver-library-path", "--driver-class-path", "--executor-memory", "--executor-cores",
    "--num-executors", "--total-executor-cores", "--proxy-user", "--principal", "--keytab", "--queue", "--class",
)  # fmt: skip
OF_SPARK: Final = frozenset((*SWITCHES, *WITH_VALUE))
# Options that only masters with executors of their own take notice of
_OF_EXECUTORS = re.compile(
    r"--(executor-\w+|num-executors|total-executor-cores|queue|supervise|proxy-user|archives|driver-cores|class)"
    r"|--conf spark\.(executor\.(memory|memoryOverhead|cores|instances)|cores\.max|dynamicAllocation\..*|yarn\..*)"
)
# Options that only these masters take notice of in client mode, as spark-submit's help says
_OF_MASTERS: Final = {
    "--driver-cores": (), "--supervise": (), "--class": (), "--queue": ("yarn",), "--num-executors": ("yarn", "k8s"),
    "--total-executor-cores": ("spark", "k8s"),
}  # fmt: skip
# Options that a client of Spark Connect takes notice of
_OF_CLIENTS = re.compile(r"--remote|--properties-file|--conf spark\.(remote|sql\.)")


def without_effect(arguments: Sequence[str], work: Work | None) -> list[str]:
    """Return a note on the options that the work took no notice of, by name: a value may be a secret."""
    typed = list(_typed(arguments))
    if work is None or not work.spark:
        used = ("--master",) if work is not None else ()  # local[4]: four threads
        names, why = [name for name in typed if name not in used], "no Spark was needed"
    elif work.master.startswith("sc://"):
        names, why = [name for name in typed if not _OF_CLIENTS.match(name)], f"{work.master} has settings of its own"
    elif re.match(r"local(\[|$)", work.master):
        names, why = [name for name in typed if _OF_EXECUTORS.search(name)], f"--master {work.master} has no executors"
    else:
        kind = work.master.partition(":")[0]
        names, why = [name for name in typed if kind not in _OF_MASTERS.get(name, (kind,))], f"--master is {kind}"
    return [f"{', '.join(dict.fromkeys(names))}: no effect, because {why}"] if names else []


def _typed(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the names of typed options, of `--conf NAME=VALUE` with the setting's."""
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if word not in SWITCHES and not equals:
            value = next(words, "")
        yield f"--conf {value.partition('=')[0].strip()}" if name in ("--conf", "-c") else name
