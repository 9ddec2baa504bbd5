"""Worked example of udfs/compact/COMPACTION.md: `python -m docs.worked_example` prints it, a test compares it.

The module writes a small log, compacts it, and compacts it again after the delete horizon. It reads every offset, size
and byte that the page shows back from the files.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lastkey.logformat.layout import BATCH_HEADER, field_offset
from tests.builders.folders import Archived, Outcome, archived_at, compact, make_plan
from tests.builders.logs import START_MS, write_partition
from tests.reference.cleaner import Settings
from tests.reference.log import Batch, Record, decode_log

LOG = "ann=10 bob=20 eve=5 || cem=30 dan=40 | bob=- ann=17 || fay=60"
DAY_MS = 86_400_000
NOW_MS = START_MS + DAY_MS  # the first pass; the second is a day and a millisecond later
SETTINGS = Settings(delete_retention_ms=DAY_MS)


@dataclass(frozen=True)
class Passes:
    """Files of the example: the archive's logs, and the results of the two passes."""

    logs: tuple[Path, ...]
    first: Outcome
    second: Outcome


def run(folder: Path) -> Passes:
    """Write the log below `folder` and compact it twice."""
    written = write_partition(folder / "archive/t-0", LOG)
    for log in written.logs:
        os.utime(log, (NOW_MS / 1000, NOW_MS / 1000))
    first = _pass(archived_at(folder / "archive", "t-0"), folder / "first", NOW_MS)
    again = first.as_archive(folder / "again", snapshots=True)
    second = _pass(again, folder / "second", NOW_MS + DAY_MS + 1)
    return Passes(tuple(written.logs), first, second)


def _pass(archived: Archived, store: Path, now_ms: int) -> Outcome:
    return compact(make_plan(archived, store, SETTINGS, now_ms=now_ms, log_start_offset=0))


def batches(path: Path) -> list[Batch]:
    """Return the batches of a `.log`, decoded by the slow twin of the reader."""
    return decode_log(path.read_bytes())


def text(record: Record) -> str:
    """Return a record as `key=value`, with `-` for null."""
    return f"{(record.key or b'').decode()}={'-' if record.value is None else record.value.decode()}"


def _before(passes: Passes) -> Iterator[str]:
    yield "| file | position | bytes | offsets | records |"
    yield "|---|---|---|---|---|"
    for path in passes.logs:
        position = 0
        for batch in batches(path):
            yield (
                f"| `{path.name}` | {position} | {len(batch.data)} | {batch.base_offset} to {batch.last_offset} |"
                f" `{' '.join(map(text, batch.records))}` |"
            )
            position += len(batch.data)


def _walk(passes: Passes) -> Iterator[str]:
    """Yield the table of the cleaned range's input records from the last to the first, with the verdict on each."""
    kept = {r.offset for s in passes.first.segments() for b in s.batches for r in b.records}
    seen: set[bytes] = set()
    yield "| offset | record | key met before? | verdict |"
    yield "|---|---|---|---|"
    records = [r for path in passes.logs[:-1] for b in batches(path) for r in b.records]
    for record in reversed(records):
        key = record.key or b""
        met, stays = key in seen, record.offset in kept
        seen.add(key)
        assert stays != met  # else the table would not explain the result
        so = "drop: superseded" if met else "keep: the last one of its key"
        so += "; a tombstone, waits for its horizon" if stays and record.value is None else ""
        yield f"| {record.offset} | `{text(record)}` | {'yes' if met else 'no'} | {so} |"


def _after(passes: Passes) -> Iterator[str]:
    before = {b.base_offset: b for path in passes.logs for b in batches(path)}
    yield "| batch | bytes | records | how |"
    yield "|---|---|---|---|"
    for batch in (b for s in passes.first.segments()[:-1] for b in s.batches):
        old = before[batch.base_offset]
        if batch.data == old.data:
            how = "copied byte by byte: keeps all"
        elif len(batch.records) < len(old.records):
            how = "rebuilt: loses records"
        else:
            how = "rebuilt: gets the delete horizon, from which its timestamps now count"
        yield (
            f"| {batch.base_offset} to {batch.last_offset} | {len(old.data)} -> {len(batch.data)} |"
            f" `{' '.join(map(text, batch.records))}` | {how} |"
        )


_CHANGES = {
    "base_offset": "kept, so the batch still begins where it began",
    "length": "shorter",
    "crc": "computed again, over everything behind it",
    "last_offset_delta": "kept: offsets 0 to 2 stay known",
    "base_timestamp": "of the first record that stays",
    "records_count": "1 of 3",
}


def _bytes(passes: Passes) -> Iterator[str]:
    """Yield the first batch, before and after, field by field in hexadecimal."""
    old, new = batches(passes.logs[0])[0].data, passes.first.segments()[0].batches[0].data
    yield f"at  {'field':<22}  {'before':<16}  after"
    for name in BATCH_HEADER.names or ():
        start = field_offset(BATCH_HEADER, name)
        end = start + BATCH_HEADER[name].itemsize
        was, now = old[start:end].hex(), new[start:end].hex()
        assert was == now or name in _CHANGES, name
        yield f"{start:>2}  {name:<22}  {was:<16}  {now:<16}  {_CHANGES.get(name, '')}".rstrip()
    size = BATCH_HEADER.itemsize
    (record,) = passes.first.segments()[0].batches[0].records
    yield f"{size:>2}  {'records':<22}  {len(old) - size:>2} bytes{'':<10}{new[size:].hex(' ')}  ({text(record)})"


def _files(passes: Passes) -> Iterator[str]:
    yield "| file | bytes |"
    yield "|---|---|"
    for name, data in passes.first.files().items():
        yield f"| `{name}` | {len(data)} |"


def _second(passes: Passes) -> str:
    horizon = passes.first.segments()[0].batches[-1]
    assert horizon.delete_horizon == NOW_MS + DAY_MS
    gone = {r.offset for s in passes.first.segments() for b in s.batches for r in b.records} - {
        r.offset for s in passes.second.segments() for b in s.batches for r in b.records
    }
    (offset,) = gone
    (last,) = [b for s in passes.second.segments() for b in s.batches if b.base_offset == horizon.base_offset]
    return (
        f"**The second pass**, a day later, finds the horizon behind it and drops the tombstone at offset {offset}."
        f" Batch {last.base_offset} to {last.last_offset} keeps `{' '.join(map(text, last.records))}`, its offsets,"
        f" and its horizon; it has {len(last.data)} bytes instead of {len(horizon.data)}."
    )


def example(passes: Passes) -> str:
    """Return the section of the page."""
    total = [sum(len(b.data) for path in passes.logs[:-1] for b in batches(path))]
    total.append(sum(s.size_bytes for s in passes.first.result.log.segments[:-1]))
    parts = [
        "**The log.** A partition has three segments. The last one is active, so no pass touches it. `bob=-` is a"
        " tombstone.",
        "\n".join(_before(passes)),
        "**The walk.** The range to clean ends at offset 7, where the active segment begins. The task walks from the"
        " last record of the range to the first:",
        "\n".join(_walk(passes)),
        f"**The batches.** Each batch keeps its offsets. {total[0]} bytes become {total[1]}:",
        "\n".join(_after(passes)),
        "**The bytes** of the first batch, in hexadecimal, before and after:",
        "```\n" + "\n".join(_bytes(passes)) + "\n```",
        "**The files** of the generation. Both cleaned segments fit into one, under the first base; the active segment"
        " stays in the archive.",
        "\n".join(_files(passes)),
        _second(passes),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Print the section."""
    with tempfile.TemporaryDirectory() as folder:
        print(example(run(Path(folder))), end="")


if __name__ == "__main__":
    main()
