"""Runner of `tests/scenarios/*.txt`; `tests/scenarios/README.md` describes their language."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.builders.folders import Outcome, archived_at, compact, lay_out, load, log_end, make_plan, survivors
from tests.builders.logs import write_partition
from tests.builders.plans import changed
from tests.builders.splits import assert_same_all_ways
from tests.reference.cleaner import AbortedTxn, Segment, Settings, clean
from tests.reference.log import ABORT, COMMIT, GZIP, Batch, Record, marker_batch, with_timestamps

FILES = sorted((Path(__file__).parents[2] / "scenarios").glob("*.txt"))
MTIME_MS = 1  # modification time of all files by default; tombstones of magic 0 and 1 are younger than any horizon


def scenarios() -> list[tuple[str, list[str]]]:
    """Return (name, lines) of each scenario in all files."""
    out: list[tuple[str, list[str]]] = []
    for file in FILES:
        for line in file.read_text().splitlines():
            words = line.strip()
            if words.startswith("scenario "):
                out.append((words.removeprefix("scenario "), []))
            elif words and not words.startswith("#"):
                out[-1][1].append(words)
    return out


def to_bytes(word: str) -> bytes | None:
    if word in ("-", "null"):
        return None
    return bytes.fromhex(word[2:]) if word.startswith("0x") else word.encode()


def to_text(data: bytes | None) -> str:
    if data is None:
        return "null"
    return data.decode() if data and data.isalnum() else f"0x{data.hex()}"


def parse_batch(line: str, offset: int) -> Batch:
    flags, _, rest = line[1:].partition("]")
    options: dict[str, str] = {}
    for flag in flags.split():
        name, _, value = flag.partition("=")
        if not value and name[0] in "pesv" and name[1:].isdigit():
            name, value = name[0], name[1:]
        options[name] = value
    pid, epoch = int(options.get("p", -1)), int(options.get("e", 0 if "p" in options else -1))
    for kind, name in ((ABORT, "abort"), (COMMIT, "commit")):
        if name in options:
            return marker_batch(offset, pid, kind, timestamp=0, epoch=epoch)
    words = [w.partition("@") for w in rest.split()]
    offsets = [int(o) for o in options["at"].split(",")] if "at" in options else range(offset, offset + len(words))
    records = []
    for at, (pair, _, timestamp) in zip(offsets, words, strict=True):
        key, _, value = pair.partition("=")
        records.append(Record(at, int(timestamp or 0), to_bytes(key), to_bytes(value)))
    legacy = "v" in options
    if options.get("v") == "0":
        records = [replace(r, timestamp=-1) for r in records]
    base = records[0].offset if legacy else int(options.get("from", offset))
    batch = Batch(
        base, int(options.get("to", records[-1].offset if records else base)), tuple(records),
        magic=int(options.get("v", 2)), codec=GZIP if "gzip" in options else 0, append_time="append" in options,
        transactional="txn" in options, max_timestamp=int(options.get("append", 0)),
        delete_horizon=int(options["horizon"]) if "horizon" in options else None,
        leader_epoch=int(options.get("epoch", -1)), producer_id=pid, producer_epoch=epoch,
        base_sequence=int(options.get("s", 0 if "p" in options else -1)),
    )  # fmt: skip
    return with_timestamps(batch).encoded()


_SETTINGS = {
    "delete.retention.ms": "delete_retention_ms",
    "min.compaction.lag.ms": "min_compaction_lag_ms",
    "segment.bytes": "segment_bytes",
}
# Settings that the twin does not know, as it is Kafka's cleaner
_RULES: dict[str, Callable[[str], dict[str, object]]] = {
    "compaction.strategy": lambda value: {"compaction_strategy": value},
    "cleanup.policy": lambda value: {"compacts": "compact" in value},
    "min.cleanable.dirty.ratio": lambda value: {"min_cleanable_dirty_ratio": float(value)},
    "retention.ms": lambda value: {"retention_ms": int(value)},
    "retention.bytes": lambda value: {"retention_bytes": int(value)},
    "retention.exact": lambda value: {"retention_exact": value == "true"},
}


@dataclass
class World:
    """A partition, and the result of its last round."""

    folder: Path
    settings: Settings = Settings()
    null_keys: str = "fail"
    sealed: bool = False
    file_time: int = MTIME_MS
    rules: dict[str, object] = field(default_factory=dict)
    segments: list[Segment] = field(default_factory=lambda: [Segment(0, (), MTIME_MS)])
    log_start: int = 0
    next_offset: int = 0
    checkpoint: int | None = None
    aborted: tuple[AbortedTxn, ...] = ()
    rounds: int = 0
    outcome: Outcome | None = None

    def set(self, name: str, value: str) -> None:
        if name == "null.keys":
            self.null_keys = value
            self.settings = replace(self.settings, keep_null_keys=value == "keep")
        elif name == "sealed":
            self.sealed = value == "true"
        elif name == "file.time":
            self.file_time = int(value)
            self.segments[-1] = replace(self.segments[-1], mtime_ms=self.file_time)
        elif name == "checkpoint":
            self.checkpoint = int(value)
        elif name == "log.start":
            self.log_start = int(value)
        elif name in _RULES:
            self.rules |= _RULES[name](value)
        else:
            self.settings = replace(self.settings, **{_SETTINGS[name]: int(value)})

    def append(self, line: str) -> None:
        batch = parse_batch(line, self.next_offset)
        last = self.segments[-1]
        self.segments[-1] = replace(last, batches=(*last.batches, batch))
        self.next_offset = batch.last_offset + 1

    def clean(self, options: dict[str, str]) -> None:
        """Clean one round by the product, in all ways, and, by Kafka's rules alone, by the twin; assert that they
        agree.
        """
        force, now_ms = options.get("from") == "log-start", int(options["at"])
        root = self.folder / f"archive{self.rounds}"
        plan = make_plan(
            lay_out(root, self.segments), self.folder / f"store{self.rounds}", self.settings, now_ms=now_ms,
            log_start_offset=self.log_start, checkpoint=self.checkpoint, sealed=self.sealed, force=force,
            null_keys=self.null_keys,
        )  # fmt: skip
        plan = changed(plan, settings=replace(plan.policy.settings, **self.rules))
        self.rounds += 1
        self.outcome = assert_same_all_ways(plan) if plan.policy.settings.compacts else compact(plan)
        result = self.outcome.result
        assert result.problem is None
        if result.status == "not_due":
            return
        active_and_ours = self.outcome.segments()
        if not self.rules:
            log = load(self.segments, self.log_start, sealed=self.sealed)
            expected = clean(log, self.settings, None if force else self.checkpoint, now_ms)
            assert survivors(active_and_ours) == survivors(expected.segments)
        assert result.log.next_offset == log_end(self.segments)
        self.segments, self.checkpoint = active_and_ours, result.log.first_dirty_offset
        self.log_start = result.log.log_start_offset
        self.aborted = self.outcome.aborted()

    def show(self, what: str) -> str:
        batches = survivors(self.segments)
        data = [r for b in batches if not b.control for r in b.records]
        views: dict[str, Callable[[], list[object]]] = {
            "keys": lambda: [to_text(r.key) for r in data],
            "values": lambda: [to_text(r.value) for r in data],
            "times": lambda: [r.timestamp for r in data],
            "offsets": lambda: [r.offset for b in batches for r in b.records],
            "bases": lambda: [b.base_offset for b in batches],
            "lasts": lambda: [b.last_offset for b in batches],
            "maxima": lambda: [b.max_timestamp for b in batches],
            "empty": lambda: [b.last_offset for b in batches if not b.records],
            "horizons": lambda: [
                f"{b.last_offset}={b.delete_horizon}" for b in batches if b.delete_horizon is not None
            ],
            "epochs": lambda: [b.leader_epoch for b in batches],
            "magic": lambda: [b.magic for b in batches],
            "segments": lambda: [s.base_offset for s in self.segments],
            "dirty": lambda: [self.checkpoint],
            "aborted": lambda: [
                f"{t.producer_id}:{t.first_offset}-{t.last_offset}/{t.last_stable_offset}" for t in self.aborted
            ],
        }
        return " ".join(str(v) for v in views[what]()) or "none"


@pytest.mark.parametrize("lines", [pytest.param(lines, id=name) for name, lines in scenarios()])
def test_scenario_has_its_expected_output(lines: list[str], tmp_path: Path) -> None:
    world = World(tmp_path)
    for line in lines:
        word, _, rest = line.partition(" ")
        if line.startswith("["):
            world.append(line)
        elif line.startswith("+"):
            world.next_offset += int(line)
        elif line == "---":
            world.segments.append(Segment(world.next_offset, (), world.file_time))
        elif word == "set":
            world.set(*rest.split("="))
        elif word == "clean":
            world.clean(dict(o.split("=") for o in rest.split()))
        elif line == "not due":
            assert world.outcome is not None
            assert world.outcome.result.status == "not_due"
        else:
            assert world.show(word) == rest, line


def test_every_scenario_has_a_unique_name_and_an_expectation() -> None:
    names = [name for name, _ in scenarios()]
    assert len(set(names)) == len(names)
    for name, lines in scenarios():
        assert any(line.startswith("clean ") for line in lines), name
        assert not lines[-1].startswith(("clean", "[", "---")), name


@pytest.mark.parametrize("checkpoint", [None, 5 * 10**9 + 1])
def test_log_is_read_once_and_its_cleanable_part_twice(checkpoint: int | None, tmp_path: Path) -> None:
    """Count bytes, wherever the offsets are."""
    write_partition(tmp_path / "archive" / "t-0", "a=1 || a=2 b=1 || c=1", base_offset=5 * 10**9)
    archived = archived_at(tmp_path / "archive", "t-0")
    plan = make_plan(
        archived, tmp_path / "store", Settings(), now_ms=10**6, log_start_offset=5 * 10**9, checkpoint=checkpoint,
        force=checkpoint is None,
    )  # fmt: skip
    result = compact(plan).result
    sizes = [segment.size_bytes for segment in archived.segments]
    assert (result.work.bytes_before, result.work.bytes_read) == (sum(sizes), sum(sizes) + sum(sizes[:2]))
