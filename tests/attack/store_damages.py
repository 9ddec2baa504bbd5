"""Every damage of a file of a store: two generations of two partitions, tables with checkpoints of Delta.

flip     one bit                 cut      a prefix is left           gone    no such file
emptied  no byte is left         swapped  with another of its kind   json    a field is another, or is not there
json+crc  the same of a manifest whose checksum is right again
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import google_crc32c

from tests.attack.damages import Case, Stream, shuffled
from tests.attack.forked import in_turn

_COMMIT: Final = re.compile(r"_delta_log/\d{20}\.json$")
GONE: Final = object()  # marks a removed field
VALUES: Final[tuple[Any, ...]] = (
    0, 1, -1, 2**31, 2**63 - 1, -(2**63), 2**64, 1.5, "", "x", "0", "\x00", None, True, [], {}, [[]], GONE,
)  # fmt: skip


def damage_streams(files: dict[str, bytes]) -> list[Stream]:
    """Return the streams of all damages. files: path below the store -> bytes."""
    streams = []

    def stream(path: str, kind: str, cases: list[tuple[int, ...]]) -> None:
        if cases:
            streams.append(Stream("store", path, kind, len(cases), cases.__getitem__))

    logs = {path.rpartition("/")[0] for path in files if _COMMIT.search(path)}
    newest = {max(path for path in files if path.startswith(log) and _COMMIT.search(path)) for log in logs}
    for path, data in files.items():
        streams.append(Stream("store", path, "flip", 8 * len(data), lambda i: (i >> 3, i & 7)))
        streams.append(Stream("store", path, "cut", len(data), lambda i: (i,)))
        if path not in newest:  # without it nothing shows that this commit existed
            stream(path, "gone", [(0,)])
        stream(path, "swapped", [(i,) for i in range(len(_others(files, path)))])
        stream(path, "emptied", [(0,)])
        if documents := _documents(data):
            fields = [(i, v) for i in range(len(list(_fields(documents)))) for v in range(len(VALUES))]
            stream(path, "json", fields)
            if path.endswith("/manifest.json"):
                stream(path, "json+crc", fields)
    return [s for s in streams if s.n]


def draw_cases(files: dict[str, bytes], seed: int | str) -> tuple[Iterator[Case], int]:
    """Return the cases, with kinds of damage in turn and kinds of files in turn within them, and their number."""
    kinds: dict[tuple[str, str], list[Stream]] = {}
    for stream in damage_streams(files):
        kinds.setdefault((stream.kind, _file_kind(stream.path)), []).append(stream)
    rng = random.Random(seed)
    turns = [shuffled(of, rng) for of in kinds.values()]
    rng.shuffle(turns)
    return in_turn(turns), sum(s.n for of in kinds.values() for s in of)


def damaged(files: dict[str, bytes], case: Case) -> dict[str, bytes | None]:
    """Return the files that a case changes; None: the file is gone."""
    data, at = files[case.path], case.at
    if case.kind == "flip":
        out = bytearray(data)
        out[at[0]] ^= 1 << at[1]
        return {case.path: bytes(out)}
    if case.kind == "cut":
        return {case.path: data[: at[0]]}
    if case.kind == "gone":
        return {case.path: None}
    if case.kind == "emptied":
        return {case.path: b""}
    if case.kind == "swapped":
        other = _others(files, case.path)[at[0]]
        return {case.path: files[other], other: data}
    documents = _documents(data)
    holder, name = list(_fields(documents))[at[0]]
    if VALUES[at[1]] is GONE:
        del holder[name]
    else:
        holder[name] = VALUES[at[1]]
    match documents:
        case [{"generation": generation}] if case.kind == "json+crc":
            text = json.dumps(generation, sort_keys=True)
            documents[0]["crc32c"] = google_crc32c.value(text.encode())
    return {case.path: "\n".join(map(json.dumps, documents)).encode()}


def put(changes: dict[str, bytes | None], store: Path) -> None:
    for path, data in changes.items():
        if data is None:
            (store / path).unlink()
        else:
            (store / path).write_bytes(data)


def _file_kind(path: str) -> str:
    """Return the sort of a file; cases damage each sort equally often."""
    folder, _, name = path.rpartition("/")
    parts = folder.split("/")
    return f"{parts[1] if parts[0] == 'state' else ''}{'log' if parts[-1] == '_delta_log' else ''}{Path(name).suffix}"


def _others(files: dict[str, bytes], path: str) -> list[str]:
    """Return files with the same ending and other bytes."""
    end = "".join(Path(path).suffixes) or path.rpartition("/")[2]
    return [p for p, data in files.items() if p != path and p.endswith(end) and data != files[path]]


def _documents(data: bytes) -> list[Any]:
    """Return the documents of a file of JSON, a line each; [] for another file."""
    try:
        report = [json.loads(line) for line in data.splitlines()]
    except ValueError:
        return []
    return report if report and all(isinstance(one, dict) for one in report) else []


def _fields(holder: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every field of documents, also those that hold other fields: (its holder, its name there)."""
    names = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
    for name in names:
        yield holder, name
        yield from _fields(holder[name])
