"""Several real processes on one store at once, started together; and checks of what must hold after each round.

Each is a child of the warm process. All processes wait for one pipe, which releases them at the same moment; random
delays of microseconds separate them.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from lastkey.jobs.errors import JobError
from lastkey.jobs.store.tables import open_state
from lastkey.logformat.errors import LogFormatError
from tests.attack.forked import Failed
from tests.attack.histories import (
    VACUUM,
    VERIFY,
    Child,
    History,
    Output,
    check_end,
    compact,
    restore,
    restored,
    run,
    stands,
)
from tests.builders.sources import read
from tests.builders.steps import listening

ALONE, BEATEN = "no conflict", "one lost, and reported a conflict"
VERDICTS: Final = (ALONE, BEATEN)
LATEST_US: Final = 120_000  # about the time of a driver: others begin anywhere in it
READER_LOOKS: Final = 6


@dataclass(frozen=True)
class Round:
    """The parties of a round, and the seed of their waiting times."""

    who: str
    seed: int

    def __str__(self) -> str:
        return f"{self.who}/{self.seed}"

    @staticmethod
    def named(name: str) -> Round:
        who, seed = name.split("/")
        return Round(who, int(seed))


PARTIES: Final = {
    "two drivers": ("compact",) * 2,
    "eight drivers": ("compact",) * 8,
    "drivers and vacuum": ("compact", "compact", "vacuum", "vacuum"),
    "driver, restore and vacuum": ("compact", "restore", "vacuum"),
    "driver and readers": ("compact", "verify", "lookup", "data source"),
    "rollback, driver and vacuum": ("compact", "rollback", "vacuum"),
}


@dataclass(frozen=True)
class Known:
    """The views that a reader may have: of the generation before a driver, and of the one it makes."""

    restored: list[dict[str, tuple[str, int]]]
    rows: list[list[tuple[Any, ...]]]  # one list for each partition


def known(history: History) -> Known:
    """Return the views that a single driver gives."""

    def look() -> Known:
        generations = Known([], [])
        for number in range(2):
            if number:
                run(compact(history.root))
            run(restore(history.root, f"output {number}"))
            generations.restored.append(restored(history.root / f"output {number}"))
            rows = _read(history.root / "store")
            assert rows, "nothing to read"
            generations.rows.extend(_by_partition(rows))
        assert generations.restored[0] != generations.restored[1], "a driver that changes nothing"
        return generations

    history.reset()
    made: Known = history.child(look)
    return made


def rounds(who: str, seed: int) -> Iterator[Round]:
    """Yield rounds without end."""
    rng = random.Random(seed)
    while True:
        yield Round(who, rng.randrange(1 << 30))


def verdict(history: History, known: Known, case: Round) -> str:
    """Play one round; return one of VERDICTS. Raises Failed."""
    history.reset()
    rng = random.Random(case.seed)
    at, gate = os.pipe()
    children = []
    for number, name in enumerate(PARTIES[case.who]):
        work, wait = _work(history, name, number), rng.randrange(LATEST_US) / 1e6

        def waiting(work: Callable[[], Any] = work, wait: float = wait) -> Any:
            os.close(gate)
            os.read(at, 1)  # until the other end is closed everywhere
            time.sleep(wait)
            with listening(lambda step: _forget(history.root, step)) if case.seed % 2 else nullcontext():
                return work()

        children.append((name, Child(waiting, history.work)))
    os.close(at)
    os.close(gate)
    ended = [(name, child.result()) for name, child in children]
    history.check_archive()
    history.child(lambda: _check(history, known, ended))
    history.check_archive()
    return BEATEN if any(isinstance(result, Output) and result.code for _, result in ended) else ALONE


def _forget(root: Path, step: str) -> None:
    """Delete the leases of runs, so that they learn of each other only by the commit."""
    if step in ("partitions planned", "wave planned"):
        for path in (root / "store" / "state" / "running").glob("*.json"):
            path.unlink(missing_ok=True)


def _work(history: History, name: str, number: int) -> Callable[[], Any]:
    root = history.root
    words = {
        "compact": compact(root), "vacuum": VACUUM(root), "restore": restore(root, f"output {number}"),
        "verify": VERIFY(root), "rollback": ["rollback", "--store", str(root / "store"), "--generation", "1", "--json"],
        "lookup": ["lookup", "--store", str(root / "store"), "--offset", "0", "--time", "latest", "--json"],
    }  # fmt: skip
    if name == "data source":
        return lambda: [_read(root / "store") for _ in range(READER_LOOKS)]
    if name in ("verify", "lookup"):
        return lambda: [run(words[name]) for _ in range(READER_LOOKS)]
    return lambda: run(words[name])


def _read(store: Path) -> Any:
    """Return rows of the current generations, or the name of an error that a job may have."""
    try:
        return comparable_rows(read("kafka_log", None, store=str(store)))
    except (JobError, LogFormatError) as error:
        return type(error).__name__


def comparable_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return comparable rows: partition, offset, key, value."""
    return sorted(zip(*(table[name].to_pylist() for name in ("partition", "offset", "key", "value")), strict=True))


def _check(history: History, known: Known, ended: list[tuple[str, Any]]) -> None:
    store, old = history.root / "store", history.kind.generations
    runs = [one for name, one in ended if name in ("compact", "vacuum", "restore", "rollback")]
    looks = [one for name, many in ended if name in ("verify", "lookup") for one in many]
    for result in (*runs, *looks):
        check_end(result)
    now = stands(store)
    committed = Counter(
        (p["topic"], p["partition"], p["generation"])
        for name, result in ended
        if name == "compact"
        for p in result.report.get("partitions", ())
        if p["generation"] is not None
    )
    if twice := [key for key, n in committed.items() if n > 1]:
        raise Failed(f"two drivers say that they committed {twice}")
    rolled = {
        (p["topic"], p["partition"], p["generation"])
        for name, result in ended
        if name == "rollback"
        for p in result.report.get("partitions", ())
    }
    if both := rolled & committed.keys():
        raise Failed(f"a driver and a rollback say that they committed {both}")
    committed.update(rolled)
    for key, generation in now.generations.items():
        if generation > old and not committed[*key, generation]:
            raise Failed(f"{key}: generation {generation} is current, and no run reports its commit")
        highest = max((g for topic, partition, g in committed if (topic, partition) == key), default=old)
        if generation != highest:
            raise Failed(f"{key}: generation {generation}, but {highest} was committed")
    for name, result in ended:
        _check_one(history, known, name, result)
    _check_next(history)


def _check_next(history: History) -> None:
    """Check that the next run leaves the logs that a single driver leaves, and vacuum all needed files and no
    others.
    """
    root = history.root
    for words in (compact(root), VERIFY(root), VACUUM(root), VERIFY(root)):
        output = run(words)
        check_end(output)
        if output.code:
            raise Failed(f"{words[0]} after the round ends with {output.code}: {output.report} {output.stderr[-1500:]}")
    now = stands(root / "store")
    logs = {key: {n: data for n, data in files.items() if n.endswith(".log")} for key, files in now.files.items()}
    if logs != history.cleaned:
        raise Failed("the next run leaves other logs than a single driver does")
    needed = {f"{key[0]}-{key[1]}/{now.generations[key]}-{run_id}" for key, run_id in now.run_ids.items()}
    segments = root / "store" / "segments"
    left = {path.parent.relative_to(segments).as_posix() for path in segments.rglob("*") if path.is_file()}
    if left - needed - {path.rpartition("/")[0] for path in _named(root / "store")}:
        raise Failed(f"vacuum left {sorted(left - needed)}")


def _named(store: Path) -> set[str]:
    """Return the logs in the store that current generations name, below segments."""
    manifests = open_state(str(store)).current()[1]
    return {row.path.removeprefix("segments/") for rows in manifests.values() for row in rows if row.root == "store"}


def _check_one(history: History, known: Known, name: str, result: Any) -> None:
    if name == "compact" and result.code not in (0, 4):
        raise Failed(f"a driver ends with {result.code}: {result.report} {result.stderr[-1500:]}")
    if name == "compact" and (result.code == 4) != bool(result.report.get("conflict") or result.report.get("error")):
        raise Failed(f"exit code {result.code}, and {result.report.get('conflict')}")
    if name == "compact" and result.code == 0 and "conflict" in {p["status"] for p in result.report["partitions"]}:
        raise Failed("exit code 0, and a conflict")
    if name == "vacuum" and result.code not in (0, 4):
        raise Failed(f"a vacuum ends with {result.code}: {result.report}")
    if name == "restore" and result.code == 0:
        (output,) = history.root.glob("output*")
        if restored(output) not in known.restored:
            raise Failed("a restore that said done is neither the old generation nor the new one")
    if name == "data source":
        for rows in result:
            if isinstance(rows, list) and any(row not in known.rows for row in _by_partition(rows)):
                raise Failed("a reader saw neither the old generation nor the new one")


def _by_partition(rows: list[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
    """Return the rows of each partition: each is replaced on its own, and read on its own."""
    return [[row for row in rows if row[0] == number] for number in (0, 1)]
