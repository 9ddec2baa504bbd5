"""Options of spark-submit. They precede the name of the job; options of the job follow the name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
IN_DEFAULTS: Final = " in spark-defaults.conf"  # suffix of the names of the machine's default settings
# Options that only masters with their own executors use
_OF_EXECUTORS = re.compile(
    r"--(executor-\w+|num-executors|total-executor-cores|queue|supervise|proxy-user|archives|driver-cores|class)"
    r"|(--conf )?spark\.(executor\.(memory|memoryOverhead|cores|instances)\b|cores\.max\b|driver\.(cores|supervise)\b"
    r"|archives\b|dynamicAllocation\.|yarn\.|kubernetes\.)"
)
# Options that only these masters take notice of in client mode, as spark-submit's help states
_OF_MASTERS: Final = {
    r"--(driver-cores|supervise|class)|(--conf )?spark\.driver\.(cores|supervise)\b": (),
    r"--queue|(--conf )?spark\.yarn\.": ("yarn",),
    r"--num-executors": ("yarn", "k8s"),
    r"--total-executor-cores|(--conf )?spark\.cores\.max\b": ("spark", "k8s"),
    r"(--conf )?spark\.kubernetes\.": ("k8s",),
}
# Options that a client of Spark Connect uses
_OF_CLIENTS = re.compile(r"--remote|(--conf )?spark\.(remote\b|sql\.)")
# Spark options that threads use: local[4] means four
_OF_THREADS = re.compile(r"--master|(--conf )?spark\.master\b")


def without_effect(names: Sequence[str], work: Work | None) -> list[str]:
    """Return a note on the options that had no effect on the work.

    names: all that the user gave, as `named` returns them. Settings in spark-defaults.conf are the machine's and not
    the run's, so they count only if Spark ran.
    """
    if work is None or not work.spark:
        here = [name for name in names if not name.endswith(IN_DEFAULTS)]
        left, why = [n for n in here if work is None or not _OF_THREADS.match(n)], "no Spark was needed"
    elif work.master.startswith("sc://"):
        left, why = [name for name in names if not _OF_CLIENTS.match(name)], f"{work.master} has settings of its own"
    elif re.match(r"local(\[|$)", work.master):
        left, why = [name for name in names if _OF_EXECUTORS.match(name)], f"--master {work.master} has no executors"
    else:
        kind = work.master.partition(":")[0]
        others = [pattern for pattern, masters in _OF_MASTERS.items() if kind not in masters]
        left, why = [name for name in names if re.match("|".join(others), name)], f"--master is {kind}"
    return [f"{', '.join(dict.fromkeys(left))}: no effect, because {why}"] if left else []


def words(arguments: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield name and value of each option; a switch has no value, and that of --conf begins with a setting's name."""
    rest = iter(arguments)
    for word in rest:
        name, equals, value = word.partition("=")
        if word not in SWITCHES and not equals:
            value = next(rest, "")
        yield "--conf" if name == "-c" else name, value


def named(arguments: Iterable[str], in_files: Mapping[str, str]) -> list[str]:
    """Return the names of options, with a setting's after `--conf`, but no values: one may be a secret.

    in_files: setting from a file -> suffix of its name in the result. These names replace --properties-file.
    """
    is_replaced = any(ending != IN_DEFAULTS for ending in in_files.values())
    typed = [
        f"--conf {value.partition('=')[0].strip()}" if name == "--conf" else name
        for name, value in words(arguments)
        if not (is_replaced and name == "--properties-file")
    ]
    return typed + [key + ending for key, ending in in_files.items()]
