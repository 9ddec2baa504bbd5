"""Jars of Kafka and of YARN, fetched once into a cache folder by Apache Ivy, which pyspark ships. Needs Java, no Maven.

The cache is `.kafka/` in the checkout, or the folder that LASTKEY_KAFKA_DIR names. Nothing is written elsewhere.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from .errors import LabError

REFERENCES = ("4.3.0", "4.4.0")  # java/kafka-<version> holds what the Java programs call differently in each
OLD = "2.8.2"  # the last line that still writes magic 0 and 1


def reference(environment: Mapping[str, str] = os.environ) -> str:
    """Return the version of the reference broker: LASTKEY_KAFKA_VERSION, by default the first of REFERENCES."""
    version = environment.get("LASTKEY_KAFKA_VERSION") or REFERENCES[0]
    if version not in REFERENCES:
        raise LabError(
            f"LASTKEY_KAFKA_VERSION: expected {' or '.join(REFERENCES)}, found {version}. Set one of these versions"
        )
    return version


NEW = reference()  # reference for this process and its children
STREAMS = f"streams-{NEW}"  # Kafka Streams with its client, for golden data (tests/golden/make_clients.py)
MIRROR = f"mirror-{REFERENCES[0]}"  # MirrorMaker 2 and the Connect that it runs in (mirror.py): a client of any broker
TIERED = f"tiered-{NEW}"  # LocalTieredStorage, which the broker loads by a class path of its own (tiered.py)
YARN = "yarn-3.5.0"  # Hadoop's servers (tests/yarn_lab), of the Hadoop whose client pyspark ships
CENTRAL = "https://repo1.maven.org/maven2/"
_ATTEMPTS = 3
_FETCH_SECONDS = 900

# Modules that Ivy resolves for each version: (organisation, module, revision), and those it must leave out.
_MODULES = {
    NEW: [
        ("org.apache.kafka", "kafka_2.13", NEW),
        ("org.apache.kafka", "kafka-tools", NEW),  # kafka-dump-log
        ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
        ("org.slf4j", "slf4j-api", "1.7.36"),  # the line that log4j-slf4j-impl binds to
    ],
    OLD: [("org.apache.kafka", "kafka_2.13", OLD), ("org.slf4j", "slf4j-reload4j", "1.7.36")],
    STREAMS: [("org.apache.kafka", "kafka-streams", NEW)],
    TIERED: [("org.apache.kafka", "kafka-storage", NEW)],
    MIRROR: [
        ("org.apache.kafka", "connect-mirror", REFERENCES[0]),
        ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.4"),
        ("org.slf4j", "slf4j-api", "1.7.36"),
    ],
    YARN: [
        ("org.apache.hadoop", "hadoop-client-minicluster", "3.5.0"),
        ("org.junit.jupiter", "junit-jupiter-api", "5.13.4"),  # this and the next: needed, not declared
        ("org.bouncycastle", "bcpkix-jdk18on", "1.82"),
    ],
}
_EXCLUDED = {
    NEW: [("org.apache.kafka", "connect-runtime")],  # Jetty and Jersey, 40 jars that neither broker nor tools start
    OLD: [],
    STREAMS: [],
    MIRROR: [],
    TIERED: [],
    YARN: [("org.apache.hadoop", "hadoop-client-api"), ("org.apache.hadoop", "hadoop-client-runtime")],  # pyspark's
}

_SETTINGS = f"""<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" root="{CENTRAL}"/></resolvers>
</ivysettings>
"""


def cache_dir() -> Path:
    """Return the folder that keeps jars and compiled classes; make it if there is none."""
    default = Path(__file__).resolve().parents[2] / ".kafka"
    folder = Path(os.environ.get("LASTKEY_KAFKA_DIR") or default).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def java_tool(name: str) -> str:
    """Return the path of `java` or `javac`: JAVA_HOME's, or else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    tool = shutil.which(name, path=str(Path(home) / "bin")) if home else shutil.which(name)
    if not tool:
        raise LabError(f"no {name} {'under JAVA_HOME ' + home if home else 'on PATH'}: the lab needs a JDK 17")
    return tool


def lab_jars(version: str = NEW) -> Path:
    """Return the folder of such jars with all that they need to run; the first call fetches them (10 to 40 s)."""
    libs, wanted = cache_dir() / f"libs-{version}", _ivy_file(version)
    if _is_complete(libs, wanted):
        return libs
    with exclusive("fetch"):
        if not _is_complete(libs, wanted):  # another process may have fetched them meanwhile
            with temporary_folder(f"fetch-{version}-") as work:
                _fetch(version, wanted, work)
                replace_folder(work / "libs", libs)
    return libs


@contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Let one process at a time work in the cache folder; the lock ends with the process that holds it."""
    with (cache_dir() / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Make a folder in the cache, removed at the end: on that file system, because its content is moved into place."""
    with tempfile.TemporaryDirectory(prefix=prefix, dir=cache_dir()) as name:
        yield Path(name)


def replace_folder(new: Path, target: Path) -> None:
    """Put a finished folder in the place of an outdated one, if there is one."""
    if target.exists():
        shutil.rmtree(target)
    new.rename(target)


def _is_complete(libs: Path, wanted: str) -> bool:
    marker = libs / "ivy.xml"  # moved into place with the jars, so it says that all of them are there
    return marker.is_file() and marker.read_text() == wanted


def _ivy_file(version: str) -> str:
    if version not in _MODULES:
        raise LabError(f"{version} is not one of {', '.join(_MODULES)}")
    wanted = [
        f'<dependency org="{org}" name="{name}" rev="{rev}" force="true"/>' for org, name, rev in _MODULES[version]
    ]
    if version == TIERED:  # the jar with the tests' classes alone, without what the broker has
        jar = '<artifact name="kafka-storage" type="jar" ext="jar" e:classifier="test"/>'
        [(org, name, rev)] = _MODULES[version]
        wanted = [f'<dependency org="{org}" name="{name}" rev="{rev}" transitive="false">{jar}</dependency>']
    excluded = [f'<exclude org="{org}" module="{name}"/>' for org, name in _EXCLUDED[version]]
    lines = [
        '<ivy-module version="2.0" xmlns:e="http://ant.apache.org/ivy/extra">'
        if version == TIERED
        else '<ivy-module version="2.0">',
        f'  <info organisation="lastkey" module="kafka-{version}"/>',
        '  <configurations><conf name="default"/></configurations>',
        '  <dependencies defaultconf="default->master,runtime(*)">',
        *(f"    {line}" for line in wanted + excluded),
        "  </dependencies>",
        "</ivy-module>",
    ]
    return "\n".join(lines) + "\n"


def _ivy_jar() -> Path:
    import pyspark

    jars = sorted((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    if not jars:
        raise LabError("pyspark's jars folder holds no ivy-*.jar")
    return jars[-1]


def _fetch(version: str, ivy_file: str, work: Path) -> None:
    """Resolve and download into `work/libs`; the next attempt uses what was downloaded before a failure."""
    (work / "settings.xml").write_text(_SETTINGS)
    (work / "ivy.xml").write_text(ivy_file)
    command = [
        java_tool("java"), "-cp", str(_ivy_jar()), "org.apache.ivy.Main",
        "-settings", str(work / "settings.xml"), "-ivy", str(work / "ivy.xml"),
        "-cache", str(cache_dir() / "ivy"), "-confs", "default", "-types", "jar", "bundle",
        "-retrieve", str(work / "libs" / "[artifact]-[revision](-[classifier]).[ext]"),
    ]  # fmt: skip
    output = ""
    for _ in range(_ATTEMPTS):
        try:
            completed = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            output = f"no end after {_FETCH_SECONDS} s"
            continue
        output = completed.stdout + completed.stderr
        jar = "{1}-{2}{3}.jar".format(*_MODULES[version][0], "-test" if version == TIERED else "")
        if completed.returncode == 0 and (work / "libs" / jar).is_file():
            (work / "libs" / "ivy.xml").write_text(ivy_file)
            shutil.rmtree(cache_dir() / "ivy")
            return
    raise LabError(f"jars of {version} could not be fetched from {CENTRAL} in {_ATTEMPTS} attempts:\n{output[-3000:]}")
