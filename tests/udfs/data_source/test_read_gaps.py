"""Gaps in the data source: within the requested offsets it reports the same as verify and compact."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs.data_source.source import KafkaLog, select_columns
from lastkey.jobs.data_source.stream import StreamReader
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.names import segment_file
from lastkey.udfs import holes
from tests.builders.archives import borders
from tests.builders.damage import RECORDS, SEGMENT_OFFSETS, SEGMENTS, START_MS, Partition, batch_at, build
from tests.builders.sources import parse_options, read

INNER = SEGMENT_OFFSETS
END = SEGMENTS * SEGMENT_OFFSETS
ACTIVE = END - SEGMENT_OFFSETS
HOSTILE = {"maxRecordsPerBatch": "3", "splitBytes": "500"}
KINDS = ("log", "index", "timeindex")


@pytest.fixture
def part(tmp_path: Path) -> Partition:
    return build(tmp_path / "archive")


@pytest.fixture
def holed(part: Partition) -> Partition:
    """Without its second segment."""
    remove(part, INNER)
    return part


def remove(part: Partition, base: int, *kinds: str) -> None:
    for kind in kinds or KINDS:
        (part.folder / segment_file(base, kind)).unlink()


def checkpoint(part: Partition, name: str, offset: int) -> None:
    (part.root / f"{name}-checkpoint").write_text(f"0\n1\nt 0 {offset}\n")


def read_gap(part: Partition, source: str = "kafka_log", **options: Any) -> LogFormatError | None:
    """Return the gap that reading ends with; check that it is a row with badRecords=quarantine, and none with
    gaps=accept.
    """
    try:
        rows, gap = read(source, part.root, **options), None
    except LogFormatError as error:
        assert error.kind == "gap"
        gap = error
    quarantined = read(source, part.root, badRecords="quarantine", **options).to_pylist()
    problems = [row["problem"] for row in quarantined if row["problem"]]
    assert ([(p["kind"], p["path"], p["expected"]) for p in problems[:1]]) == (
        [(gap.kind, gap.path, gap.expected)] if gap is not None else []
    )
    accepted = read(source, part.root, gaps="accept", **options)
    assert len(accepted) == len(quarantined) - len(problems)
    if gap is None:
        assert rows.equals(accepted)
    return gap


def offsets(**each: int) -> dict[str, str]:
    return {name: json.dumps({"t": {"0": offset}}) for name, offset in each.items()}


@pytest.mark.parametrize("hostile", [{}, HOSTILE], ids=["", "hostile"])
@pytest.mark.parametrize("source", ["kafka_log", "kafka_log_batches"])
def test_missing_inner_segment_is_a_gap_for_readers(holed: Partition, source: str, hostile: dict[str, str]) -> None:
    gap = read_gap(holed, source, **hostile)
    assert gap is not None
    assert gap.path == f"{holed.folder}/{segment_file(2 * INNER, 'log')}"
    assert gap.expected.startswith(f"a segment that begins at offset {INNER}, where {holed.log(0)} ends")
    assert gap.found.startswith(f"one that begins at {2 * INNER}") and "gaps=accept" in gap.hint
    if source == "kafka_log":
        kept = read(source, holed.root, gaps="accept", **hostile)["offset"].to_pylist()
        assert kept == [*range(INNER), *range(2 * INNER, END)]


def test_fail_on_data_loss_false_skips_gaps(holed: Partition) -> None:
    assert len(read("kafka_log", holed.root, failOnDataLoss="false")) == END - INNER
    with pytest.raises(LogFormatError, match="gap"):
        read("kafka_log", holed.root, failOnDataLoss="false", gaps="fail")


def test_indexes_show_a_missing_beginning_only(holed: Partition) -> None:
    """No log is opened for them."""
    assert read_gap(holed, "kafka_log_index") is None
    remove(holed, 0)
    assert read_gap(holed, "kafka_log_index") is not None


TOUCHING: dict[str, dict[str, Any]] = {
    "from inside": offsets(startingOffsets=INNER + 1),
    "to inside": offsets(endingOffsets=INNER + 1),
    "only inside": offsets(startingOffsets=INNER + 1, endingOffsets=INNER + 2),
    "pushed, from inside": {"pushed": {"start_offset": INNER + 1}},
    "pushed, to inside": {"pushed": {"end_offset": INNER + 1}},
    "pushed, by time": {"pushed": {"start_ms": START_MS + ACTIVE}},
    "from a time inside": {"startingTimestamp": str(START_MS + INNER + 3)},
    "to a time inside": {"endingTimestamp": str(START_MS + INNER + 3)},
    "committed": {"isolationLevel": "read_committed"},
    "a key": {"key": "key-1"},
}
BESIDE: dict[str, dict[str, Any]] = {
    "from behind": offsets(startingOffsets=2 * INNER),
    "to its front": offsets(endingOffsets=INNER),
    "pushed, from behind": {"pushed": {"start_offset": 2 * INNER}},
    "pushed, to its front": {"pushed": {"end_offset": INNER}},
    "from a time behind": {"startingTimestamp": str(START_MS + 2 * INNER + 1)},
    "from the end": {"startingOffsets": "latest"},
}


@pytest.mark.parametrize("options", TOUCHING.values(), ids=TOUCHING)
def test_gap_in_the_requested_range_is_reported(holed: Partition, options: dict[str, Any]) -> None:
    gap = read_gap(holed, **options)
    assert gap is not None and gap.expected.startswith(f"a segment that begins at offset {INNER}, where {holed.log(0)}")


@pytest.mark.parametrize("options", BESIDE.values(), ids=BESIDE)
def test_gap_outside_the_requested_range_is_ignored(holed: Partition, options: dict[str, Any]) -> None:
    assert read_gap(holed, **options) is None


def test_explicitly_named_files_need_not_be_adjacent(holed: Partition) -> None:
    assert len(read("kafka_log", f"{holed.folder}/*.log")) == END - INNER


def test_index_without_a_log_is_a_gap_for_readers(part: Partition) -> None:
    """The same below the cleaner checkpoint, where a hole alone proves no loss."""
    checkpoint(part, "cleaner-offset", ACTIVE)
    remove(part, INNER, "log", "timeindex")
    gap = read_gap(part)
    assert gap is not None and gap.path == f"{part.folder}/{segment_file(INNER, 'index')}"


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_log_cut_at_a_batch_boundary_is_a_gap(part: Partition, kind: str) -> None:
    checkpoint(part, "cleaner-offset", ACTIVE)
    data = part.log(INNER).read_bytes()
    part.log(INNER).write_bytes(data[: borders(data)[0]])
    remove(part, INNER, "index" if kind == "timeindex" else "timeindex")
    gap = read_gap(part)
    assert gap is not None and (gap.path, gap.position) == (str(part.log(INNER)), borders(data)[0])
    remove(part, INNER, kind)
    assert read_gap(part) is None


def test_missing_first_segment_is_a_gap(part: Partition) -> None:
    remove(part, 0)
    gap = read_gap(part)
    assert gap is not None and gap.path == f"{part.folder}/leader-epoch-checkpoint"
    assert read_gap(part, startingTimestamp=str(START_MS)) is not None
    assert read_gap(part, **offsets(startingOffsets=INNER)) is None  # the reader starts at that offset
    checkpoint(part, "log-start-offset", INNER)
    assert read_gap(part) is None


@pytest.mark.parametrize("kind", ["index", "snapshot"])
def test_index_above_the_last_segment_is_a_gap_for_readers(part: Partition, kind: str) -> None:
    beyond = part.folder / segment_file(END + 1, kind)
    beyond.write_bytes(b"")
    gap = read_gap(part)
    assert gap is not None and gap.path == str(beyond)
    assert read_gap(part, **offsets(endingOffsets=END)) is None
    beyond.rename(part.folder / segment_file(END, "snapshot"))  # a clean stop leaves one there
    assert read_gap(part) is None


@pytest.mark.slow
@pytest.mark.long
def test_readers_verify_and_compact_report_the_same_gaps(tmp_path: Path) -> None:
    """Missing segments, segments that a cleaner rewrote, and its checkpoint together."""
    seen = set()
    cases = itertools.product(((), (INNER,), (2 * INNER,)), (None, 0, 2 * INNER, ACTIVE), (0, INNER + RECORDS, ACTIVE))
    for number, (removed, thinned, cleaned) in enumerate(cases):
        part = build(tmp_path / str(number) / "archive")
        if thinned is not None:
            part.write(thinned, [batch_at(thinned), batch_at(thinned + 2 * RECORDS)], active=thinned == ACTIVE)
        for base in {*removed} - {thinned}:
            remove(part, base)
        if cleaned:
            checkpoint(part, "cleaner-offset", cleaned)
        expected = "gap" in {p.kind for p in part.verify().problems}
        result = part.compact()
        assert (result.problem is not None and result.problem.kind == "gap") == expected
        assert (read_gap(part) is not None) == expected, (removed, thinned, cleaned)
        seen.add(expected)
    assert seen == {True, False}


def test_cleaned_batches_are_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that was filled from a cleaned leader has a hole behind each segment."""
    part = Partition(tmp_path / "archive", tmp_path / "store")
    part.folder.mkdir(parents=True)
    for base in range(0, 60, 2):
        part.write(base, [batch_at(base, 1)])
    part.write(60, [batch_at(60, 1), batch_at(63, 1)], active=True)
    looked: list[str] = []
    first_thinned = holes._first_thinned
    monkeypatch.setattr(
        holes, "_first_thinned", lambda log, least: looked.append(log.path) or first_thinned(log, least)
    )
    assert len(read("kafka_log", part.root)) == 32
    assert len(looked) == 30  # from the first hole up to the segment that shows it
    looked.clear()
    remove(part, 60)
    assert len(read("kafka_log", part.root, gaps="accept")) == 30
    assert looked == []
    rows = read("kafka_log", part.root, badRecords="quarantine").to_pylist()
    assert sum(row["problem"] is not None for row in rows) == 29
    assert len(looked) == 29 + 29  # all above the first hole, once; and of each hole the segment that ends there


# -- streams, as Spark calls them


def open_stream(part: Partition, **options: str) -> StreamReader:
    parsed = parse_options("kafka_log", part.root, **options)
    return StreamReader(parsed, select_columns(KafkaLog.columns, parsed))


def micro_batch(stream: StreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    tasks = stream.partitions(start, end)
    return end, [row for task in tasks for batch in stream.read(task) for row in batch.to_pylist()]


def test_a_stream_fails_at_a_gap(part: Partition) -> None:
    stream = open_stream(part, startingOffsets="earliest", columns="offset")
    end, rows = micro_batch(stream, stream.initialOffset())
    assert len(rows) == END
    part.write(END + INNER, [batch_at(END + INNER)])  # the next segment, without the one before it
    with pytest.raises(LogFormatError, match=f"gap: expected a segment that begins at offset {END}"):
        micro_batch(stream, end)
    for accepting in ({"gaps": "accept"}, {"failOnDataLoss": "false"}):
        _, rows = micro_batch(open_stream(part, columns="offset", **accepting), end)
        assert [row["offset"] for row in rows] == [*range(END + INNER, END + INNER + RECORDS)]
    _, rows = micro_batch(open_stream(part, badRecords="quarantine", columns="offset"), end)
    assert [row["problem"] and row["problem"]["kind"] for row in rows] == ["gap", *[None] * RECORDS]


def test_stream_does_not_begin_after_a_gap(part: Partition) -> None:
    remove(part, 0)
    with pytest.raises(LogFormatError, match="gap"):
        open_stream(part, startingOffsets="earliest").initialOffset()
    assert open_stream(part, startingOffsets="earliest", gaps="accept").initialOffset() == {"t": {"0": INNER}}
    aside = open_stream(part, startingOffsets="earliest", badRecords="quarantine", columns="offset")
    begin = aside.initialOffset()
    assert begin == {}
    middle, rows = micro_batch(aside, begin)
    assert [row["problem"]["kind"] for row in rows] == ["gap"]
    _, rows = micro_batch(aside, middle)
    assert [row["offset"] for row in rows] == [*range(INNER, END)]
