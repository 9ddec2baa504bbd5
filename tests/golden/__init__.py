"""Real partitions, and what the real cleaner made of them: `golden.tar.xz`, made by make_golden.py.

Each case is a folder: `input/<topic>-<n>/` as a broker left it (4.3.0; 2.8.2 for magic 0 and 1); `expected1/` after one
pass of the 4.3.0 broker's cleaner; `expected2/`, `expected3/` after further passes from the log start, 25 hours later
each; `dump/` (some cases) what kafka-dump-log prints of the files; `meta.json` clocks, settings, digests, SHA-256.
A case `<topic>-more` is a cleaned partition with more records behind, cleaned from its checkpoint on.

File times are part of the data (tombstones of magic 0 and 1, segments without timestamps): unpack keeps them.

`clients.tar.xz`, made by make_clients.py, holds partitions that other clients wrote, and a broker's own topics, each
as `input/` alone; meta.json has digests of what Kafka's cleaner leaves of them. `clients.json` says what is in it.

`streams_groups.tar.xz`, made by make_streams_groups.py, holds `__consumer_offsets` of a broker with streams groups, and
its own answers on what all groups have committed.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.reference.log import decode_log

HERE = Path(__file__).parent
ARCHIVE = HERE / "golden.tar.xz"
CLIENTS, CLIENTS_ABOUT = HERE / "clients.tar.xz", HERE / "clients.json"
STREAMS_GROUPS = HERE / "streams_groups.tar.xz"
SPECS = {name: HERE / f"{name}.spec" for name in ("new", "old", "more")}
PASSES = (1, 2, 3)
# Cases that come with what kafka-dump-log prints of their files
DUMPED = ("none-tomb", "gzip-headers", "txn-zstd", "idem-active", "null-keys", "v0-gzip", "v1-none")


@dataclass(frozen=True)
class Case:
    """One folder of the archive."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @cached_property
    def meta(self) -> dict[str, Any]:
        return json.loads((self.folder / "meta.json").read_text())

    @property
    def settings(self) -> dict[str, int]:
        """Topic settings under Kafka's names."""
        return self.meta["settings"]

    @property
    def partitions(self) -> list[str]:
        """Names of the partitions, `<topic>-<n>`; there are some."""
        names = list(self.meta["partitions"])
        assert names, self.folder
        return names

    def input(self, partition: str) -> Path:
        return self.folder / "input" / partition

    def expected(self, number: int, partition: str) -> Path:
        """Return the folder after pass `number`, 1 to 3."""
        return self.folder / f"expected{number}" / partition

    def before(self, number: int, partition: str) -> Path:
        """Return the folder that pass `number` begins with."""
        return self.input(partition) if number == 1 else self.expected(number - 1, partition)

    def now_ms(self, number: int, partition: str) -> int:
        """Return the clock of pass `number`."""
        return self.meta["partitions"][partition]["now_ms"][number - 1]

    def first_dirty_offset(self, number: int, partition: str) -> int:
        return self.meta["partitions"][partition]["first_dirty_offset"][number - 1]

    def log_start(self, partition: str) -> int:
        """Return the log start that DeleteRecords has set, else 0."""
        return self.meta["partitions"][partition].get("log_start", 0)

    def dumps(self) -> dict[Path, Path]:
        """Return file -> the text that kafka-dump-log prints of it, if any; paths in the text begin below the case."""
        root = self.folder / "dump"
        return {self.folder / text.relative_to(root).with_suffix(""): text for text in sorted(root.rglob("*.txt"))}


def case_names() -> list[str]:
    """Return the names of all cases, for parametrize; known without unpacking."""
    topics = {name: list(dict.fromkeys(line["topic"] for line in spec_lines(name))) for name in SPECS}
    return sorted([*topics["new"], *topics["old"], *(f"{topic}-more" for topic in topics["more"])])


def spec_lines(name: str) -> list[dict[str, str]]:
    """Return the options of each line of a spec file, without its comments."""
    lines = [line.partition("#")[0].split() for line in SPECS[name].read_text().splitlines()]
    return [dict(word.split("=", 1) for word in words) for words in lines if words]


def golden(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """Return all cases by name, unpacked once a session. Read only: copy what a test changes (copytree keeps times)."""
    folder = tmp_path_factory.getbasetemp() / "golden"
    if not folder.exists():
        unpack(folder)
    return {name: Case(folder / name) for name in case_names()}


def client_names() -> list[str]:
    """Return the names of all cases of other clients."""
    return sorted(json.loads(CLIENTS_ABOUT.read_text())["cases"])


def clients(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """Return the cases of other clients by name; only `input` lies there, and meta.json."""
    folder = tmp_path_factory.getbasetemp() / "clients"
    if not folder.exists():
        unpack(folder, CLIENTS)
    return {name: Case(folder / name) for name in client_names()}


def digest_of_logs(logs: Iterable[bytes]) -> str:
    """Return the SHA-256 of all batches, header fields and records, however compressed; by the tests' own reader."""
    return hashlib.sha256("\n".join(repr(batch) for log in logs for batch in decode_log(log)).encode()).hexdigest()


def unpack(folder: Path, packed: Path = ARCHIVE) -> None:
    """Unpack an archive with its file times into a new folder."""
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
        for member in archive:
            if member.isfile():
                time_ns = round(member.mtime * 1_000_000) * 1000  # a float: exact to the microsecond, no more
                os.utime(folder / member.name, ns=(time_ns, time_ns))
