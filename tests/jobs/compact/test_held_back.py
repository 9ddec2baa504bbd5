"""Each partition that is not due names the rule that holds it back, where, and since when; in text and in JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders.logs import START_MS
from tests.builders.place import NOW, Place

DAY = 86_400_000
OPEN = "k=0 k=1 | {pid=1 epoch=0 txn} a=1 | {base=4} g=7 | k=2 || h=8 || i=9"
FUTURE = 1000 * START_MS  # microseconds
LATER = OPEN.replace("{base=4} ", "")
COMPACT = '"cleanup.policy" = "compact"'
FIRST = "t-0/00000000000000000000.log"


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, capsys)


def run(place: Place, text: str, settings: str, *more: str) -> tuple[str, dict[str, Any]]:
    """Compact a log that is not due or uncleanable; return the text, and the partition of the JSON."""
    if text:
        place.write(text)
    (place.root / "c.toml").write_text(f"[defaults]\n{settings}\n[job]\nengine = 'threads'\n")
    words = ["compact", str(place.archive.parent), "--store", str(place.store), "--topics", "t"]
    words += ["--config", str(place.root / "c.toml"), "--now", str(NOW), *more]
    _, output = place.run(*words)
    _, report = place.run(*words, "--json")
    [partition] = json.loads(report)["partitions"]
    return output, partition


def reason(rule: str, **given: Any) -> dict[str, Any]:
    none = dict.fromkeys(("offset", "path", "since_ms", "until_ms", "producer_id", "found", "limit"))
    return {"rule": rule, "in_future": False} | none | given


@pytest.mark.parametrize(
    ("text", "settings", "expected", "message"),
    [
        (
            OPEN, COMPACT,
            reason("open_transaction", offset=2, path=FIRST, since_ms=START_MS + 2, producer_id=1),
            f"{FIRST}: producer 1 has had a transaction open since offset 2, 2023-11-14T22:13:20.002Z; nothing from "
            "there on is cleaned before a marker ends it",
        ),
        (
            "k=0 k=1 || k=2 || h=8", f'{COMPACT}\n"min.compaction.lag.ms" = {DAY}',
            reason("min.compaction.lag.ms", offset=0, path=FIRST, since_ms=START_MS + 1, until_ms=START_MS + 1 + DAY,
                   found=NOW - START_MS - 1, limit=DAY),
            f"{FIRST}: min.compaction.lag.ms 86400000: the newest timestamp is 2023-11-14T22:13:20.001Z; nothing from "
            "offset 0 on is cleaned before 2023-11-15T22:13:20.001Z",
        ),
        (
            f"{{ts={FUTURE}}} a=1 || {{ts=5}} b=1 || {{ts=6}} c=1 || d=1",
            f'"cleanup.policy" = "delete"\n"retention.ms" = {DAY}',
            reason("retention.ms", offset=0, path=FIRST, since_ms=FUTURE, until_ms=FUTURE + DAY, found=NOW - FUTURE,
                   limit=DAY, in_future=True),
            f"{FIRST}: retention.ms 86400000: the newest timestamp is 55840-11-08T22:13:20.000Z, in the future; "
            "nothing from offset 0 on is deleted before 55840-11-09T22:13:20.000Z",
        ),
        (
            "a=1 || b=2 || c=3", '"cleanup.policy" = "delete"\n"retention.bytes" = 1000',
            reason("retention.bytes", offset=0, path=FIRST, found=210, limit=1000),
            f"{FIRST}: retention.bytes 1000: the log has 210 bytes from offset 0 on",
        ),
        (
            "a=1 || b=2 || c=3", f'{COMPACT}\n"min.cleanable.dirty.ratio" = 1.0',
            reason("min.cleanable.dirty.ratio", offset=0, path=FIRST, found=1.0, limit=1.0),
            f"{FIRST}: min.cleanable.dirty.ratio 1.0: 1 of the bytes are dirty, from offset 0 on",
        ),
        (
            "a=1 || b=2 || c=3", f'{COMPACT}\n"min.dirty.bytes" = 1000',
            reason("min.dirty.bytes", offset=0, path=FIRST, found=140, limit=1000),
            f"{FIRST}: min.dirty.bytes 1000: 140 bytes are dirty, from offset 0 on",
        ),
        (
            "a=1 | b=2", COMPACT, reason("active_segment", offset=0, path=FIRST),
            f"{FIRST}: the active segment, from offset 0 on, is not cleaned or deleted; --sealed if nothing appends",
        ),
    ],
)  # fmt: skip
def test_each_rule_is_reported_for_a_partition_that_is_not_due(
    place: Place, text: str, settings: str, expected: dict[str, Any], message: str
) -> None:
    printed, partition = run(place, text, settings)
    assert partition["status"] == "not_due"
    [reported] = partition["held_back"]
    assert reported.pop("message").startswith(message)
    assert reported == expected
    assert f"\nnot due: {message}" in printed


def test_reported_rule_is_the_only_obstacle_of_the_partition(place: Place) -> None:
    """Name the rule that holds back more, and the ratio only where it alone is missed."""
    lag = f'"min.compaction.lag.ms" = {DAY}'
    for text, settings, rule in (
        (OPEN, f"{COMPACT}\n{lag}", "open_transaction"),
        (f"k=0 || k=1 || {LATER}", f"{COMPACT}\n{lag}", "min.compaction.lag.ms"),
        (f"{{ts=5}} k=0 || {{ts=6}} k=1 || {LATER}", f'{COMPACT}\n{lag}\n"min.dirty.bytes" = 200', "open_transaction"),
        (OPEN, f'{COMPACT}\n"min.cleanable.dirty.ratio" = 1.0', "min.cleanable.dirty.ratio"),
        (OPEN.replace("||", "|"), COMPACT, "active_segment"),
    ):
        _, partition = run(place, text, settings)
        assert [obstacle["rule"] for obstacle in partition["held_back"]] == [rule], text
        for path in place.archive.iterdir():
            path.unlink()


def test_compact_and_delete_each_have_a_reason(place: Place) -> None:
    settings = f'"cleanup.policy" = "compact,delete"\n"retention.ms" = {DAY}\n"min.compaction.lag.ms" = {DAY}'
    _, partition = run(place, "a=1 || b=2 || c=3", settings)
    assert [rule["rule"] for rule in partition["held_back"]] == ["min.compaction.lag.ms", "retention.ms"]


def test_second_run_finds_no_new_records(place: Place) -> None:
    run(place, "a=1 || a=2 || b=3", COMPACT, "--sealed")
    printed, partition = run(place, "", COMPACT, "--sealed")
    assert [rule["rule"] for rule in partition["held_back"]] == ["nothing_new"]
    assert "not due: t-0: nothing was appended at offset 3, up to which everything is clean" in printed


def test_high_watermark_is_a_reported_rule(place: Place) -> None:
    place.write("a=1 || b=2 || c=3")
    (place.archive.parent / "replication-offset-checkpoint").write_text("0\n1\nt 0 0\n")
    printed, partition = run(place, "", COMPACT)
    assert [rule["rule"] for rule in partition["held_back"]] == ["high_watermark"], printed
    assert "the high watermark is 0; nothing above it is read" in printed


def test_many_partitions_have_a_line_for_each_rule(place: Place) -> None:
    for n in range(4):
        other = Place(place.root / str(n), place.capsys)
        other.write("a=1 || a=2 || b=3" if n else OPEN)
        other.archive.rename(place.root / "archive" / f"t-{n + 1}")
    for path in [place.archive]:
        path.rmdir()
    (place.root / "c.toml").write_text(f'[defaults]\n{COMPACT}\n"min.compaction.lag.ms" = {DAY}\n')
    words = ["compact", str(place.archive.parent), "--store", str(place.store), "--topics", "t", "--now", str(NOW)]
    words += ["--config", str(place.root / "c.toml"), "--engine", "threads"]
    _, output = place.run(*words)
    lines = [line for line in output.splitlines() if line.startswith("not due: ")]
    assert len(lines) == 3 and lines[0].startswith("not due: 4 partitions")
    assert lines[1].startswith("not due: t-1/") and "transaction open since offset 2" in lines[1]
    assert lines[2].startswith("not due: t-2/") and lines[2].endswith(" (and 2 more partitions by this rule)")
    _, output = place.run(*words, "--all")
    assert sum(line.startswith("not due: ") for line in output.splitlines()) == 4


def test_a_future_timestamp_that_blocks_a_retention_which_deletes_is_noted(place: Place) -> None:
    text = f"{{ts=5}} a=1 || {{ts={FUTURE}}} b=1 || {{ts=6}} c=1 || d=1"
    place.write(text)
    settings = f'"cleanup.policy" = "delete"\n"retention.ms" = {DAY}'
    (place.root / "c.toml").write_text(f"[defaults]\n{settings}\n[job]\nengine = 'threads'\n")
    _, output = place.run(
        "compact", str(place.archive.parent), "--store", str(place.store), "--topics", "t", "--config",
        str(place.root / "c.toml"), "--now", str(NOW),
    )  # fmt: skip
    assert "expired: t-0: 1 segment by time" in output
    assert "note: t-0/00000000000000000001.log: retention.ms 86400000: the newest timestamp is 55840-11-08" in output


def test_verify_states_an_open_transaction_that_holds_cleaning_back(place: Place) -> None:
    place.write(OPEN)
    code, output = place.run("verify", str(place.archive.parent))
    assert (code, "no problem found" in output) == (0, True)
    assert f"held back: {FIRST}: producer 1 has had a transaction open since offset 2, 2023-11-14" in output
    _, report = place.run("verify", str(place.archive.parent), "--json")
    [partition] = json.loads(report)["partitions"]
    del partition["held_back"]["message"]
    expected = reason("open_transaction", offset=2, path=FIRST, since_ms=START_MS + 2, producer_id=1)
    assert partition["held_back"] == expected
    for path in place.archive.iterdir():
        path.unlink()
    place.write("k=0 || {pid=1 txn} a=1")
    _, output = place.run("verify", str(place.archive.parent))
    assert "held back" not in output  # it begins in the active segment, which is not cleaned anyway


@pytest.mark.parametrize("second", ["{leader=3} x=1 x=2 || y=1 y=2 || z=3", "x=1 x=2 || y=1 y=2 || z=3 | z=4 || u=9"])
def test_retention_only_run_detects_a_replaced_log(place: Place, second: str) -> None:
    old = "{ts=5} o=0 | {ts=6} o=1 || "
    settings = f'"cleanup.policy" = "delete"\n"retention.ms" = {1000 * DAY}'
    place.write(f"{old}a=1 a=2 || b=1 b=2 || c=3")
    run(place, "", settings)
    same, partition = run(place, f"{old}a=1 a=2 || b=1 b=2 || c=3 | d=4 || e=5", settings)
    assert partition["status"] == "not_due", same
    for path in place.archive.iterdir():
        path.unlink()
    output, partition = run(place, f"{old}{second}", settings)
    assert (partition["status"], partition["state"]) == ("uncleanable", "diverged")
    assert "topic recreated, archive rolled back or converted, or another cluster: --reset starts over" in output


def test_log_that_grew_in_its_last_segment_is_the_same_log(place: Place) -> None:
    """The store holds the cleaned beginning of that segment; its last batch in the archive shows that it is the log."""
    place.write("a=1 | a=2")
    run(place, "", COMPACT, "--sealed")
    output, partition = run(
        place, "a=1 | a=2 | b=3 || c=4", f'"cleanup.policy" = "delete"\n"retention.ms" = {1000 * DAY}'
    )
    assert (partition["status"], partition["problem"]) == ("not_due", None), output
    _, partition = run(place, "a=1 | a=3 | b=3 || c=4", f'"cleanup.policy" = "delete"\n"retention.ms" = {1000 * DAY}')
    assert (partition["status"], partition["state"]) == ("uncleanable", "diverged")
