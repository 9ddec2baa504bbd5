"""A proof: the rows of a search as a JSON array, written row by row: a search may have millions of findings.

Each row has a `type`. The first one is a "header"; the last one is a "footer" with the number of rows of each type.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from lastkey.jobs.command.whole_file import NEW, whole_file

FORMAT: Final = 2


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
