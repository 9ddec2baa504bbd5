"""Drawn logs, settings and nights: `audit compaction` finds nothing in what the real job made, and each damage to it.

./spark-submit.sh test tests/jobs/audit/test_drawn_compaction.py --attack-cases 20 --attack-seed 7
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs import rollback
from lastkey.jobs.audit import compaction
from lastkey.jobs.command.options import AuditCompactionOptions, RollbackOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.errors import NoGenerationError
from lastkey.jobs.store.generations import manifests_of
from lastkey.jobs.topics import Key
from lastkey.logformat.listing import Segment
from tests.attack.summary import n_cases
from tests.builders.archives import COMPACT, HOUR, Lab, offset_checkpoint
from tests.builders.logs import START_MS, write_partition
from tests.reference.log import LZ4, Batch, Record, decode_log
from tests.reference.read_committed import committed_offsets

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.attack]

TOPICS, NIGHTS = 12, 3
Found = set[tuple[str, int]]  # kind, offset


def test_what_the_job_makes_is_clean_and_what_is_damaged_is_found(spark, tmp_path, request, monkeypatch):
    tried = 0
    for case in range(n_cases(request, 1)):
        rng = random.Random(f"{request.config.getoption('--attack-seed')} {case}")
        nights = Drawn(rng, tmp_path / str(case))
        for night in range(NIGHTS):
            nights.run(night)
            assert nights.audit("audits") == {}, (case, night)
            if night and rng.random() < 0.4:
                nights.go_back(rng.randrange(1, night + 1))
                assert nights.audit("audits") == {}, (case, night, "rolled back")
        expected = nights.damage()
        with monkeypatch.context() as patch:  # the manifests have other sizes
            patch.setattr(compaction, "manifests_of", nights.manifests_as_they_are)
            found = nights.audit("new audits")
        wrong = {t: (found.get(t), expected.get(t)) for t in {*found, *expected} if found.get(t) != expected.get(t)}
        assert wrong == {}, case
        tried += len(expected)
        shutil.rmtree(nights.lab.root)
    assert tried >= 3 * n_cases(request, 1)


class Drawn:
    """Topics with drawn settings, which change now and then, and logs that grow from night to night."""

    def __init__(self, rng: random.Random, root: Path) -> None:
        self.rng = rng
        self.settings = {f"t{n}": self.drawn_settings() for n in range(TOPICS)}
        self.lab = Lab(None, root, {"topics": self.settings, "job": {"engine": "threads"}})
        self.segments: dict[str, list[str]] = {topic: [] for topic in self.settings}
        self.starts: dict[str, int] = {}
        self.unread: set[str] = set()  # an older generation may need what its archive has lost

    def drawn_settings(self) -> dict[str, Any]:
        rng = self.rng
        out = COMPACT | {
            "delete.retention.ms": rng.choice([0, HOUR // 2, HOUR, 24 * HOUR]),
            "segment.bytes": rng.choice([300, 600, 1 << 30]),
            "null.keys": rng.choice(["keep", "drop"]),
        }
        kind = rng.choice(["plain", "plain", "timestamp", "retention", "exact", "exact", "exact"])
        if kind == "timestamp":
            out["compaction.strategy"] = kind
        elif kind != "plain":
            out["cleanup.policy"] = rng.choice(["compact,delete", "delete"])
            out["retention.ms"] = rng.choice([0, HOUR // 2, HOUR, 2 * HOUR])
            out["retention.exact"] = kind == "exact"
        return out

    def drawn_segment(self, night: int) -> str:
        rng, batches, at_ms = self.rng, [], START_MS + night * HOUR
        for _ in range(rng.randrange(1, 4)):
            words = [
                f"{rng.choice('abcde-')}={rng.choice(['-', '-', '', rng.randrange(99), 'x' * 9])}"
                f"~{at_ms + rng.randrange(-HOUR // 2, HOUR // 2)}"
                for _ in range(rng.randrange(1, 5))
            ]
            options = [f"codec={rng.choice(['zstd', 'gzip', 'lz4', 'snappy'])}"] if rng.random() < 0.3 else []
            if rng.random() < 0.2:
                options.append(f"horizon={at_ms + rng.choice([-1, 1, HOUR])}")
            producer = rng.choice([7, 8]) if rng.random() < 0.25 else None
            options += [f"pid={producer} txn"] if producer else []
            batches.append(f"{{{' '.join(options)}}} {' '.join(words)}" if options else " ".join(words))
            if producer and rng.random() < 0.8:
                batches.append(f"{{pid={producer} {rng.choice(['commit', 'commit', 'abort'])} ts={at_ms}}}")
        return " | ".join(batches)

    def run(self, night: int) -> None:
        """Let the logs grow, some lose their beginnings; compact them."""
        needed = self.lab.state().current()[1] if night else {}
        for topic in self.settings:
            if night and self.rng.random() < 0.35:
                self.settings[topic] = self.drawn_settings()
            self.segments[topic] += [self.drawn_segment(night) for _ in range(self.rng.randrange(1, 4))]
            folder = self.lab.archive / f"{topic}-0"
            shutil.rmtree(folder, ignore_errors=True)
            logs = write_partition(folder, " || ".join(self.segments[topic])).logs
            first = min((s.base_offset for s in needed.get((topic, 0), []) if s.root == "archive"), default=1 << 62)
            may_go = [log for log in logs[:-2] if int(log.stem) < first]
            if night and self.rng.random() < 0.25 and may_go:
                start = int(logs[self.rng.randrange(1, len(may_go) + 1)].stem)
                self.starts[topic] = max(self.starts.get(topic, 0), start)
            for log in logs:
                if int(log.stem) < self.starts.get(topic, 0):
                    for file in folder.glob(f"{log.stem}.[!s]*"):
                        file.unlink()
        starts = {f"{topic}-0": start for topic, start in self.starts.items()}
        offset_checkpoint(self.lab.archive / "log-start-offset-checkpoint", starts)
        report = self.lab.run(START_MS + (night + 1) * HOUR, force=self.rng.random() < 0.3)
        assert report.exit_code == 0, report.to_text()

    def go_back(self, generation: int) -> None:
        with contextlib.suppress(NoGenerationError):  # the archive has lost what it needs
            rollback.run(RollbackOptions(store=str(self.lab.store), generation=generation), Silent())

    def audit(self, audits: str) -> dict[str, Found]:
        """Return what is found, of both comparisons together; note which partitions could not be read in whole."""
        options = AuditCompactionOptions(store=str(self.lab.store), audits=str(self.lab.root / audits), most=1000)
        report = compaction.run(options, Silent())
        self.unread |= {topic for topic in self.settings for p in report.problems if f"{topic}-0/" in p.path}
        out: dict[str, Found] = {}
        for row in report.details["found"]:
            out.setdefault(row["topic"], set()).add((row["kind"], row["offset"]))
        return out

    def damage(self) -> dict[str, Found]:
        """Change or remove one survivor of each log that the store has, and of the archive too; return what that is."""
        state, expected = self.lab.state(), {}
        manifests, runs = state.current()[1], state.histories(set(self.settings))
        for topic, _ in sorted(manifests):
            run = runs[topic, 0][0]
            if topic in self.unread or json.loads(run.settings).get("compaction_strategy", "offset") != "offset":
                continue
            logs = sorted((self.lab.archive / f"{topic}-0").glob("*.log"))
            there = set(committed_offsets([b for log in logs for b in decode_log(log.read_bytes())]))
            there = {offset for offset in there if offset >= self.starts.get(topic, 0)}
            there &= set(committed_offsets(self.lab.batches(manifests[topic, 0])))
            places = [
                (path, i, record)
                for path in sorted(self.lab.folder((topic, 0)).glob("*.log"))  # not those that its parent shares
                for i, batch in enumerate(decode_log(path.read_bytes()))
                if not batch.control
                for record in batch.records
                if record.key is not None and record.offset in there and record.offset >= run.log_start_offset
            ]
            if not places:
                continue
            path, i, record = self.rng.choice(places)
            changed = self.drawn_change(record)
            write_changed(path, i, record, changed)
            kept = record.offset >= run.end_offset
            expected[topic] = {("changed" if changed else "dropped" if kept else "lost", record.offset)}
        return expected

    def drawn_change(self, record: Record) -> Record | None:
        """Return the record with another key, value or time; None: it goes."""
        kind = self.rng.choice(["key", "value", "time", "headers", "gone", "gone", "gone"])
        if kind == "gone" and record.value is not None:  # a tombstone may go
            return None
        return replace(
            record,
            key=record.key + b"#" if kind == "key" else record.key,
            value=b"!" + (record.value or b"") if kind == "value" else record.value,
            timestamp=record.timestamp + (kind == "time"),
            headers=(*record.headers, (b"new", None)) if kind in ("headers", "gone") else record.headers,
        )

    def manifests_as_they_are(self, *given: Any) -> dict[Key, list[Segment]]:
        """Return manifests with the sizes that the files have now."""
        return {
            key: [replace(s, size_bytes=self.lab.path(s).stat().st_size) if s.root == "store" else s for s in rows]
            for key, rows in manifests_of(*given).items()
        }


def write_changed(path: Path, batch: int, record: Record, changed: Record | None) -> None:
    """Write a log with one record changed, or without it; its offsets stay."""
    batches = decode_log(path.read_bytes())
    at = batches[batch]
    records = tuple(changed if one.offset == record.offset else one for one in at.records)
    kept = tuple(one for one in records if one is not None)
    batches[batch] = encoded(at, kept)
    path.write_bytes(b"".join(one.data for one in batches))


def encoded(batch: Batch, records: tuple[Record, ...]) -> Batch:
    codec = batch.codec if records and batch.codec != LZ4 else 0  # the reference does not write LZ4
    times = [record.timestamp for record in records] or [batch.max_timestamp]
    base = batch.base_timestamp if batch.delete_horizon is not None else times[0]
    return replace(
        batch, records=records, codec=codec, base_timestamp=base, max_timestamp=max(times), append_time=False, data=b""
    ).encoded()
