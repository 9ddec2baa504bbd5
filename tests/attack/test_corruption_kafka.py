"""A sample of damage with checksums that are right again: Kafka's cleaner leaves the same as ours, or refuses the log.

Kafka opens the same folder with UnifiedLog, without recovery, as a broker does after a clean stop.
"""

from __future__ import annotations

import itertools
import pickle
import random
import shutil
import threading
from pathlib import Path

import pytest

from tests.attack.corrupting import MEMORY_BYTES
from tests.attack.damages import Case, case_named, damaged, shuffled, streams
from tests.attack.forked import MOST_FAILURES, Failed, Tried, in_turn, try_all
from tests.attack.readers import check_named, compact
from tests.attack.specimens import CHECKPOINT, NAMES, make, put
from tests.attack.summary import chosen, judged
from tests.builders.damage import NOW_MS
from tests.builders.folders import Outcome
from tests.kafka_lab import CleanSpec, LabError, clean, dump
from tests.kafka_lab.jvm import lab

pytestmark = [pytest.mark.attack, pytest.mark.kafka]

AGREED, REFUSED, NAMED, ABOVE, MORE = (
    "equal to the result of Kafka's cleaner", "refused by Kafka", "reported as problems",
    "stopped at the high watermark", "with more records than Kafka keeps and a reason",
)  # fmt: skip
VERDICTS = (AGREED, REFUSED, NAMED, ABOVE, MORE)
KAFKA_SECONDS = 60.0  # for a case: it cleans, and dumps up to six logs
FEW = 30  # damages; the last one of seed 1 changes the producer of a marker
_CLEANED = "for Kafka's cleaner to judge"


def test_damaged_logs_are_cleaned_as_by_kafka(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    option = request.config.getoption
    specimens = {name: make(name, tmp_path) for name in NAMES if not name.startswith("v3")}  # Kafka reads no magic 3
    of = [
        [s for s in streams(specimen, sides=False) if "crc" in s.kind or s.kind in ("body", "bomb")]
        for specimen in specimens.values()
    ]
    rng = random.Random(option("--attack-seed"))
    cases = in_turn([shuffled(one, rng) for one in of])
    for specimen in specimens.values():  # the JVM starts, kernels are compiled
        assert _ours(specimen.files, tmp_path) == _CLEANED, specimen.name
        assert _by_kafka(specimen.files, tmp_path) == AGREED, specimen.name
    tried = Tried(dict.fromkeys(VERDICTS, 0))
    some = chosen(request, cases, FEW, case_named)
    for case in itertools.takewhile(lambda _: len(tried.failures) < MOST_FAILURES, some):
        specimen = specimens[case.specimen]
        changed = specimen.files | damaged(specimen, case)
        _try(case, {path: data for path, data in changed.items() if data is not None}, tmp_path, tried)
    judged(request, "corruption, Kafka's cleaner", tried, sum(s.n for one in of for s in one))
    assert tried.counts[AGREED] or option("--attack-case"), tried


def _try(case: Case, files: dict[str, bytes], work: Path, tried: Tried) -> None:
    """Run ours in a forked process, which is watched; then Kafka's, whose JVM is killed if it does not answer."""
    ours = try_all([case], lambda _: _ours(files, work), (*VERDICTS, _CLEANED), MEMORY_BYTES, work)
    cleaned = ours.counts.pop(_CLEANED)
    tried.add(ours)
    if not cleaned:
        return
    jvm, hung = lab(), threading.Event()

    def end() -> None:
        hung.set()
        jvm.kill()

    watch = threading.Timer(KAFKA_SECONDS, end)
    watch.start()
    try:
        tried.counts[_by_kafka(files, work)] += 1
    except Failed as error:
        tried.hangs += hung.is_set()
        tried.crashes += not hung.is_set()
        message = f"Kafka is still going after {KAFKA_SECONDS:g} s" if hung.is_set() else str(error)
        tried.failures.append((str(case), message))
    finally:
        watch.cancel()


def _ours(files: dict[str, bytes], work: Path) -> str:
    """Compact an archive with our code; leave the outcome for `_by_kafka` if it is cleaned."""
    root = work / "archive"
    shutil.rmtree(root, ignore_errors=True)
    put(files, root)
    seen = compact(root, work)
    if seen.outcome is None:
        check_named(seen.problems)
        return NAMED
    if any("high watermark" in note for note in seen.outcome.result.notes):
        return ABOVE  # a broker would cut the log there, or ask its leader
    (work / "outcome").write_bytes(pickle.dumps(seen.outcome))
    return _CLEANED


def _by_kafka(files: dict[str, bytes], work: Path) -> str:
    """Return Kafka's verdict on the outcome that `_ours` left. Raises Failed."""
    ours: Outcome = pickle.loads((work / "outcome").read_bytes())
    theirs, restored = work / "kafka", work / "ours"
    for folder in (theirs, restored):
        shutil.rmtree(folder, ignore_errors=True)
    put(files, theirs)
    end, jvm = ours.result.log.first_dirty_offset, lab()
    try:
        clean([CleanSpec(theirs / "t-0", NOW_MS, first_dirty_offset=CHECKPOINT, index_interval_bytes=1)])
        expected = _cleaned(theirs / "t-0", end)
    except LabError as error:
        if not jvm.is_alive():
            raise Failed(str(error)) from error
        return REFUSED
    if ours.result.status == "cleaned":
        ours.as_archive(restored, snapshots=True)
        cleaned = _cleaned(restored / "t-0", end)
    else:
        cleaned = _cleaned(work / "archive" / "t-0", end)
    if cleaned == expected:
        return AGREED
    more, missing = set(cleaned) - set(expected), set(expected) - set(cleaned)
    if any("the log decides" in note for note in ours.result.notes):
        # A snapshot or transaction index contradicts the log: Kafka trusts it, and may remove records that we keep
        missing -= {line for line in _cleaned(work / "archive" / "t-0") if int(line.split("\t")[1]) >= end}
        if not missing:
            return MORE
    raise Failed(f"more {sorted(more)[:3]}, missing {sorted(missing)[:3]}")


def _cleaned(folder: Path, end: int | None = None) -> list[str]:
    """Return the data records of the cleaned segments, those below an offset (None: of all), as Kafka reads them."""
    logs = sorted(path for path in folder.glob("*.log") if end is None or int(path.stem) < end)
    return [line for log in logs for line in dump([log], "D")[log]]
