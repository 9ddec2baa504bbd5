"""A proof: a report whose rows are chained by SHA-256, as a file of JSON lines that anybody can check.

    {"sha256":"<64 hex digits>","row":{"line":1,...}}

The digest of a line is that of the 64 hex digits of the line before it, followed by the bytes of the row as they stand.
Before the first line stand 64 zeros. Rows are numbered by `line`; the first one has type "header", the last one type
"footer", and says how many there are of each. So whoever changes, removes, adds or moves a row has to make all later
digests anew.
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

FORMAT: Final = 1
_START: Final = b"0" * 64
_BEFORE, _BETWEEN, _AFTER = b'{"sha256":"', b'","row":', b"}\n"
_ROW_AT: Final = len(_BEFORE) + 64 + len(_BETWEEN)
_MOST_PROBLEMS: Final = 100


@dataclass
class ProofWriter:
    """Writer of a proof. The rows are written one after the other, because each digest needs the one before it."""

    _file: IO[bytes]
    counts: Counter[str] = field(default_factory=Counter)
    digest: bytes = _START

    def write(self, kind: str, **fields: Any) -> None:
        """Append a row of a type."""
        self.counts[kind] += 1
        row = canonical({"line": self.counts.total(), "type": kind, **fields})
        self.digest = _digest(self.digest, row)
        self._file.write(b"".join((_BEFORE, self.digest, _BETWEEN, row, _AFTER)))


@contextmanager
def new_proof(path: Path) -> Iterator[ProofWriter]:
    """Yield a writer of a file that its owner alone can read, for it names keys; it gets its name when it is whole."""
    with whole_file(path, NEW, "--proof", 0o600) as file:
        yield ProofWriter(file)


def canonical(row: dict[str, Any]) -> bytes:
    """Return a row as JSON in the one form that proofs have: sorted names, no spaces, ASCII."""
    return json.dumps(row, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _digest(before: bytes, row: bytes) -> bytes:
    return hashlib.sha256(before + row).hexdigest().encode()


@dataclass
class Checked:
    """Result of a check of a proof."""

    lines: int = 0
    header: dict[str, Any] = field(default_factory=dict)
    footer: dict[str, Any] = field(default_factory=dict)
    sha256: str = ""  # that the last line states
    problems: list[str] = field(default_factory=list)
    more_problems: int = 0

    def add(self, text: str) -> None:
        """Note a problem; count it alone if there are many."""
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(text)
        else:
            self.more_problems += 1


def check(path: Path) -> Checked:
    """Check the chain of a proof, line by line. Raises OSError if the file cannot be read."""
    out, counts = Checked(), Counter[str]()
    digests = {_START}  # that the next line may follow: the one that is stated, and the one that the row has
    expected = 1  # number of the next row
    with path.open("rb") as file:
        for out.lines, line in enumerate(file, 1):
            parsed = _parsed(line)
            if parsed is None:
                out.add(f'line {out.lines}: expected {{"sha256":...,"row":...}} and a newline, found something else')
                continue
            stated, raw, row = parsed
            number, kind = row.get("line"), str(row.get("type"))
            made = [_digest(before, raw) for before in digests]
            if number != expected:
                out.add(f"line {out.lines}: expected row {expected}, found row {number}: {_moved(number, expected)}")
            elif stated not in made:
                out.add(
                    f"line {out.lines}: row {number} was changed: expected SHA-256 {made[0].decode()}, "
                    f"found {stated.decode(errors='replace')}"
                )
            out.sha256 = stated.decode(errors="replace")
            digests = {stated, *(made if number == expected else ())}
            expected = number + 1 if isinstance(number, int) else expected + 1
            counts[kind] += 1
            if out.lines == 1:
                out.header = row
            out.footer = row if kind == "footer" else {}
    _check_ends(out, counts)
    return out


def _check_ends(out: Checked, counts: Counter[str]) -> None:
    if out.header.get("type") != "header":
        out.add('line 1: expected a row of type "header", found none')
    elif out.header.get("format") != FORMAT:
        out.add(f"line 1: expected format {FORMAT}, found {out.header.get('format')}")
    if not out.footer:
        out.add(f'line {out.lines}: expected a row of type "footer" at the end, found none: rows were removed there')
        return
    held = {kind: n for kind, n in counts.items() if kind != "footer"}
    if out.footer.get("rows") != held:
        out.add(f"line {out.lines}: expected rows {out.footer.get('rows')}, as the footer says, found {held}")


def _parsed(line: bytes) -> tuple[bytes, bytes, dict[str, Any]] | None:
    """Return the stated digest, the row's bytes and the row; None for anything else."""
    stated, raw = line[len(_BEFORE) : len(_BEFORE) + 64], line[_ROW_AT : -len(_AFTER)]
    if b"".join((_BEFORE, stated, _BETWEEN, raw, _AFTER)) != line:
        return None
    try:
        row = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return (stated, raw, row) if isinstance(row, dict) else None


def _moved(number: object, expected: int) -> str:
    if not isinstance(number, int) or number < expected:
        return "a row was added, or moved"
    missing = f"row {expected} is" if number == expected + 1 else f"rows {expected} to {number - 1} are"
    return f"{missing} missing here"
