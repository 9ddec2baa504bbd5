"""Split of `[spark options] JOB ARGS`, and the arguments that Spark is launched with. No pyspark here: help is fast."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from lastkey.jobs.command.spark_options import IN_DEFAULTS, OF_SPARK, SWITCHES, named, words

# spark-submit's options and the settings that they stand for
_AS_CONF = {
    "--master": "spark.master",
    "--remote": "spark.remote",
    "--deploy-mode": "spark.submit.deployMode",
    "--name": "spark.app.name",
    "--jars": "spark.jars",
    "--packages": "spark.jars.packages",
    "--archives": "spark.archives",
    "--driver-memory": "spark.driver.memory",
    "--driver-java-options": "spark.driver.extraJavaOptions",
    "--driver-class-path": "spark.driver.extraClassPath",
    "--executor-memory": "spark.executor.memory",
}
OF_PACK: Final = "lastkey/bin/python"  # end of the path to the Python of any pack
# Lists that are joined, not replaced: setting, the option that wins over it, separator
_JOINED = (
    ("spark.jars", "--jars", ","),
    ("spark.jars.packages", "--packages", ","),
    ("spark.driver.extraClassPath", "--driver-class-path", ":"),
)
_PROPERTY: Final = re.compile(r"(?P<key>[^\s=:#!][^\s=:]*)(\s*[=:]\s*|\s+|$)(?P<value>.*)")


@dataclass(frozen=True)
class UserOptions:
    """Spark's options as the user gave them: `arguments` as typed, `conf` by setting, from every place; `in_files`: how
    names end of settings that only a file gives.
    """

    arguments: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    in_files: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names of all options, which a note may repeat."""
        return named(self.arguments, self.in_files)

    @property
    def master(self) -> str | None:
        """The master that the user named."""
        return self.conf.get("spark.master")

    @property
    def packs_python(self) -> str | None:
        """The Python of the pack that the user sends to executors as `--archives FILE#lastkey`; None: no pack."""
        named = (archive.strip().rpartition("#") for archive in self.conf.get("spark.archives", "").split(","))
        return f"./{OF_PACK}" if any(file and folder == "lastkey" for file, _, folder in named) else None

    @property
    def remote(self) -> str | None:
        """The connection string of Spark Connect that the user gave. It may hold a token: never repeat it."""
        return self.conf.get("spark.remote")


def from_environment() -> UserOptions:
    """Return the user's options from where pyspark looks: PYSPARK_SUBMIT_ARGS, which `python -m lastkey` sets."""
    arguments = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    return user_options([word for word in arguments if word != "pyspark-shell"])


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return Spark's options before the job's name, and the rest from the name on."""
    i = 0
    while i < len(arguments):
        argument = arguments[i]
        if argument.partition("=")[0] not in OF_SPARK:
            break  # the job's name, or an option that Spark lacks: the command line rejects it
        i += 1 if argument in SWITCHES or ("=" in argument and argument.startswith("--")) else 2
    return list(arguments[:i]), list(arguments[i:])


def user_options(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> UserOptions:
    """Return the user's settings: from the arguments, from --properties-file, and without it (or with
    --load-spark-defaults) from the spark-defaults.conf that Spark finds by SPARK_CONF_DIR or SPARK_HOME.
    """
    conf: dict[str, str] = {}
    flags: dict[str, str] = {}
    properties = None
    for name, value in words(arguments):
        if name == "--conf":
            key, _, setting = value.partition("=")
            conf[key.strip()] = setting
        elif name == "--properties-file":
            properties = Path(value)
        elif name in _AS_CONF:
            flags[_AS_CONF[name]] = value
    conf |= flags  # as in spark-submit: an option wins over --conf
    folder, home = environment.get("SPARK_CONF_DIR"), environment.get("SPARK_HOME")
    files = [] if properties is None else [(properties, " in --properties-file")]
    if (folder or home) and (properties is None or "--load-spark-defaults" in arguments):
        files.append((Path(folder or f"{home}/conf") / "spark-defaults.conf", IN_DEFAULTS))
    in_files: dict[str, str] = {}
    for path, ending in files:
        found = read_properties(path) if path.is_file() else {}
        in_files |= {key: ending for key in found if key not in conf}
        conf = found | conf
    if environment.get("SPARK_REMOTE"):
        conf.setdefault("spark.remote", environment["SPARK_REMOTE"])
    return UserOptions(tuple(arguments), conf, in_files)


def read_properties(path: Path) -> dict[str, str]:
    """Read a spark-defaults.conf, as Java reads properties: key, "=", ":" or white space, value."""
    lines = (_PROPERTY.fullmatch(line.strip()) for line in path.read_text("utf-8", "replace").splitlines())
    return {line["key"]: line["value"] for line in lines if line}


def as_typed(arguments: Sequence[str]) -> str:
    """Join Spark's options of a command line to PYSPARK_SUBMIT_ARGS."""
    return shlex.join([*arguments, "pyspark-shell"])


def launch_arguments(ours: Mapping[str, str], user: UserOptions) -> str:
    """Return PYSPARK_SUBMIT_ARGS: ours first, then the user's as typed, so that theirs win; lists joined last."""
    joined = {setting for setting, _, _ in _JOINED}
    arguments: list[str] = []
    for key, value in ours.items():
        if key not in user.conf and key not in joined:
            arguments += ["--conf", f"{key}={value}"]
    arguments += user.arguments
    for setting, option, separator in _JOINED:
        if ours.get(setting):
            arguments += [option, separator.join(filter(None, (ours[setting], user.conf.get(setting))))]
    return as_typed(arguments)
