"""Proof of a search for keys: the searched keys, the listed files, the findings, and the unread places.

It is a JSON array, written row by row: a search may have millions of findings. Each row has a `type`. The first one is
a "header"; the last one is a "footer" with the number of rows of each type.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa

from lastkey.jobs import installation
from lastkey.jobs.command.store_options import EraseOptions
from lastkey.jobs.command.whole_file import NEW, check_file, whole_file
from lastkey.jobs.erase.search_store import SearchReport, Sought
from lastkey.jobs.errors import UsageError
from lastkey.udfs.key_search.findings import finding_columns
from lastkey.udfs.key_search.key_set import KeySet
from lastkey.udfs.storage import Root, normal_uri

FORMAT: Final = 2
_ROWS: Final = 10_000  # findings that are Python objects at a time
_UNREACHED: Final = "consumers, mirrors, replicas, backups of the archive, and reports and proofs made earlier"


@dataclass
class ProofWriter:
    """Writer of a proof."""

    _file: IO[bytes]
    counts: Counter[str] = field(default_factory=Counter)
    _hash: Any = field(default_factory=hashlib.sha256)

    @property
    def sha256(self) -> str:
        """SHA-256 of what is written, in hex; once the proof is whole, of the file."""
        return self._hash.hexdigest()  # type: ignore[no-any-return]

    def write(self, kind: str, **fields: Any) -> None:
        """Append a row of a type."""
        row = json.dumps({"type": kind, **fields}, separators=(",", ":"), ensure_ascii=True)
        self._append((",\n" if self.counts else "[\n") + row)
        self.counts[kind] += 1

    def end(self) -> None:
        """End the array."""
        self._append("\n]\n")

    def _append(self, text: str) -> None:
        data = text.encode()
        self._hash.update(data)
        self._file.write(data)


@contextmanager
def new_proof(path: Path) -> Iterator[ProofWriter]:
    """Yield a writer of a file that only its owner can read, because it names keys; rename it when it is complete."""
    with whole_file(path, NEW, "--proof", 0o600) as file:
        proof = ProofWriter(file)
        yield proof
        proof.end()


def key_names(keys: KeySet, secret: bytes) -> pa.StringArray:
    """Return the keys as reports and proofs name them: their HMAC-SHA256 in hex."""
    # hashlib takes one value a call: this is the one loop over keys
    return pa.array((hmac.digest(secret, k, "sha256").hex() for k in keys.keys.to_pylist()), pa.string())


def checked_proof(asked: str, archives: Iterable[str | None], stores: Iterable[str | None]) -> Path:
    """Return the path of the proof. Raise UsageError if it cannot be written there, or may not (`check_file`)."""
    path = Path(normal_uri(asked))
    check_file("--proof", str(path), NEW, archives, stores)
    if not path.parent.is_dir():
        raise UsageError(message=f"--proof: expected a folder {path.parent}, found none")
    return path


def write_proof(
    path: Path,
    sought: Sought,
    names: pa.StringArray,
    report: SearchReport,
    roots: Sequence[tuple[Root, str]],
    options: EraseOptions,
    at_ms: int,
) -> None:
    """Write the proof, and put it into the report."""
    places = sought.places
    kinds = {(file.root, file.path): file.kind for file in places.files}
    with new_proof(path) as proof:
        proof.write(
            "header", format=FORMAT, audit="erasure", lastkey=installation.version(), time_ms=at_ms,
            places=[{"place": name, "uri": root.uri} for root, name in roots], topics=asdict(options.topics),
            keys=len(sought.keys), keys_are="HMAC-SHA256",
            not_reached=_UNREACHED,
        )  # fmt: skip
        for name in names.to_pylist():
            proof.write("key", key=name)
        for root, _ in roots:
            for entry in places.listed.get(root.uri, ()):
                at = root.uri, entry.path
                proof.write(
                    "file", root=root.uri, path=entry.path, size=entry.size, mtime_ms=entry.mtime_ms,
                    searched_as=kinds.get(at), sha256=sought.digests.get(at),
                )  # fmt: skip
        for table, files in sought.tables():
            for part in table.to_batches(_ROWS):
                columns = {"key": names.take(part["key"]), **finding_columns(part, files)}
                for row in pa.table(columns).to_pylist():
                    proof.write("finding", **row)
        for problem in sought.problems:
            told = {name: getattr(problem, name) for name in ("path", "position", "expected", "found", "hint")}
            proof.write("not_read", problem=problem.kind, **told)
        summary = report.summary
        result = "found" if report.findings else "unknown" if sought.problems else "not found"
        proof.write("footer", rows=dict(proof.counts), summary=summary, result=result)
    report.notes.append(f"proof: {path}")
    report.details["proof"] = {
        "path": str(path), "sha256": proof.sha256, "rows": proof.counts.total(), "result": result,
    }  # fmt: skip
