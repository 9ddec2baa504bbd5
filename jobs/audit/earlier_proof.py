"""Files that an earlier proof has searched for the same keys: those that have not changed need not be read again.

A file is passed over if the proof lists it with the size and time that it has now, as searched, and states no finding
in it and nothing of it that was not read. Where a key was, or may have been, is always searched again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lastkey.jobs.audit import check_proof
from lastkey.jobs.command.options import CheckProofOptions
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import count, moment
from lastkey.jobs.errors import UsageError
from lastkey.udfs.audit.findings import SearchFile

_NEW: Final = "leave out --since, and everything is searched"


@dataclass(frozen=True)
class EarlierProof:
    """An earlier proof, and the files that it found free of the keys."""

    path: str
    sha256: str  # of its last row
    time_ms: int
    free: frozenset[tuple[str, str, int, int]]  # root, path, size, mtime_ms

    def covers(self, file: SearchFile) -> bool:
        """Return whether a file is as the proof saw it, without any of the keys."""
        return (file.root, file.path, file.size, file.mtime_ms) in self.free

    @property
    def note(self) -> str:
        """Note for a report: which proof it is."""
        return f"since: {self.path} of {moment(self.time_ms)}: whoever wrote it is believed"


def read_earlier(path: str, names: Collection[str], *, hidden: bool, progress: Progress) -> EarlierProof:
    """Read a proof whose chain holds. names: of the keys that are looked for now.

    Raises UsageError if the proof does not hold, is none of an erasure, or did not look for each of the keys.
    """
    report = check_proof.run(CheckProofOptions(path), progress)
    kind = "HMAC-SHA256" if hidden else "hex"
    if report.problems:
        raise UsageError(message=f"--since {path}: expected a proof that holds, found: {report.problems[0]}; {_NEW}")
    if report.header.get("audit") != "erasure" or report.header.get("keys_are") != kind:
        told = f"{report.header.get('audit')} with keys as {report.header.get('keys_are')}"
        raise UsageError(
            message=f"--since {path}: expected a proof of erasure with keys as {kind}, found {told}; {_NEW}"
        )
    looked_for, files, held = set[str](), dict[str, tuple[str, str, int, int]](), set[str]()
    for row in _rows(Path(path)):
        if row["type"] == "key":
            looked_for.add(row["key"])
        elif row["type"] == "file" and row["searched_as"] is not None:
            files[f"{row['root']}/{row['path']}"] = row["root"], row["path"], row["size"], row["mtime_ms"]
        elif row["type"] == "finding":
            held.add(f"{row['root']}/{row['path']}")
        elif row["type"] == "not_read":
            held.add(row["path"])
    if missing := len(set(names) - looked_for):
        raise UsageError(
            message=f"--since {path}: expected a proof that looked for all {count(len(names))} keys, found"
            f" {count(missing)} that it did not look for, or named by another --hmac-key; {_NEW}"
        )
    free = frozenset(file for shown, file in files.items() if not _is_below(shown, held))
    return EarlierProof(path, report.sha256, report.header["time_ms"], free)


def _is_below(path: str, held: Collection[str]) -> bool:
    """Return whether a path, or a folder that it lies in, is one of these."""
    while path and path not in held:
        path = path.rpartition("/")[0]
    return bool(path)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            yield json.loads(line)["row"]
