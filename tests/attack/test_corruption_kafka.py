"""A sample of damage with checksums that are right again: what we clean, Kafka's cleaner cleans alike, or refuses it.

Kafka opens the same folder with UnifiedLog, without recovery, as a broker does after a clean stop.
"""

from __future__ import annotations

import itertools
import random
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.attack.damages import case_named, damaged, shuffled, streams
from tests.attack.forked import in_turn
from tests.attack.readers import Seen, compact
from tests.attack.specimens import CHECKPOINT, NAMES, make, put
from tests.attack.summary import line_of, tell
from tests.builders.damage import NOW_MS
from tests.kafka_lab import CleanSpec, LabError, clean, dump

pytestmark = [pytest.mark.attack, pytest.mark.kafka]

AGREED, REFUSED, NAMED, ABOVE, MORE = (
    "agreed by Kafka's cleaner", "refused by Kafka", "named problems", "stopped at the high watermark",
    "that keep more than Kafka and say why",
)  # fmt: skip


@dataclass
class Sampled:
    """What became of the sample."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((AGREED, REFUSED, NAMED, ABOVE, MORE), 0))
    differ: list[str] = field(default_factory=list)


def test_what_is_cleaned_is_what_kafka_leaves(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    option = request.config.getoption
    specimens = {name: make(name, tmp_path) for name in NAMES}
    of = [
        [s for s in streams(specimen, sides=False) if "crc" in s.kind or s.kind in ("body", "bomb")]
        for specimen in specimens.values()
    ]
    rng = random.Random(option("--attack-seed"))
    cases = in_turn([shuffled(one, rng) for one in of])
    if option("--attack-case"):
        cases = iter([case_named(option("--attack-case"))])
    healthy = Sampled()
    for specimen in specimens.values():  # the JVM starts, kernels are compiled
        _try(specimen.name, specimen.files, tmp_path, healthy)
    assert healthy.counts[AGREED] == len(specimens), healthy
    sampled = Sampled()
    end = time.monotonic() + option("--attack-seconds")
    for case in itertools.takewhile(lambda _: time.monotonic() < end, cases):
        specimen = specimens[case.specimen]
        changed = specimen.files | damaged(specimen, case)
        _try(str(case), {path: data for path, data in changed.items() if data is not None}, tmp_path, sampled)
    n = sum(s.n for one in of for s in one)
    line = line_of("corruption, Kafka's cleaner", sampled.counts, n, len(sampled.differ), 0, 0)
    tell(request, line)
    assert not sampled.differ, f"{line}\n" + "\n".join(sampled.differ)
    assert sampled.counts[AGREED] or option("--attack-case"), line


def _try(name: str, files: dict[str, bytes], work: Path, sampled: Sampled) -> None:
    root, theirs, ours = work / "archive", work / "kafka", work / "ours"
    for folder in (root, theirs, ours):
        shutil.rmtree(folder, ignore_errors=True)
    put(files, root)
    seen = compact(root, work)
    if seen.outcome is None:
        sampled.counts[NAMED] += 1
        return
    if any("high watermark" in note for note in seen.outcome.result.notes):
        sampled.counts[ABOVE] += 1  # a broker would cut the log there, or ask its leader
        return
    put(files, theirs)
    try:
        clean([CleanSpec(theirs / "t-0", NOW_MS, first_dirty_offset=CHECKPOINT, index_interval_bytes=1)])
        expected = _cleaned(theirs / "t-0", seen)
    except LabError:
        sampled.counts[REFUSED] += 1
        return
    if seen.outcome.result.status == "cleaned":
        put(files, ours)
        seen.outcome.as_archive(work / "ours-cleaned", snapshots=True)
        found = _cleaned(work / "ours-cleaned" / "t-0", seen)
        shutil.rmtree(work / "ours-cleaned")
    else:
        found = _cleaned(root / "t-0", seen)
    more, missing = sorted(set(found) - set(expected)), sorted(set(expected) - set(found))
    if found == expected:
        sampled.counts[AGREED] += 1
    elif not missing and any("what the log says is taken" in note for note in seen.outcome.result.notes):
        sampled.counts[MORE] += 1  # a transaction index that contradicts the log: Kafka believes it
    else:
        sampled.differ.append(f"--attack-case '{name}': more {more[:3]}, missing {missing[:3]}")


def _cleaned(folder: Path, seen: Seen) -> list[str]:
    """Data records of the segments that were cleaned, as Kafka reads them."""
    assert seen.outcome is not None
    end = seen.outcome.result.first_dirty_offset
    logs = sorted(path for path in folder.glob("*.log") if int(path.stem) < end)
    return [line for log in logs for line in dump([log], "D")[log]]
