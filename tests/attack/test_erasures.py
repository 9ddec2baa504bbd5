"""Sequences of appends, compactions, erasures, rollbacks, resets, vacuums and lost tables, against a plain model.

After each step the current generation has no record of an erased key below its bound, and the last record of every
other key. All its records are in the archive byte for byte. After `vacuum --erased` no file of the store holds an
erased key that was not written again.

./spark-submit.sh test tests/attack/test_erasures.py --attack-cases 200 --attack-seed 7
"""

from __future__ import annotations

import itertools
import random
import shutil
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from lastkey.jobs import rebuild_state, rollback, vacuum
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RebuildStateOptions, RollbackOptions, VacuumOptions
from lastkey.jobs.compact import plan_inputs
from lastkey.jobs.errors import ERASED_RECORDS, NO_GENERATION, JobError, UsageError
from lastkey.jobs.topics import TopicFilter
from lastkey.logformat.names import MAX_OFFSET
from lastkey.logformat.side_files.checkpoints import format_uuid
from tests.attack.summary import again, chosen, tell
from tests.builders.archives import COMPACT
from tests.builders.erasures import Erasures, find_keys

pytestmark = [pytest.mark.attack, pytest.mark.slow]

FEW = 4
STEPS = 14
KEYS = tuple(f"key-{n:03}" for n in range(7))
T = TopicFilter(("t",))


class World(Erasures):
    """One sequence."""

    def __init__(self, root: Path, draw: random.Random, tally: Counter[str]) -> None:
        schedule = {"compaction.schedule": "yield"} if draw.random() < 0.3 else {}
        super().__init__(root, COMPACT | schedule)
        self.draw, self.tally, self.written, self.ids = draw, tally, 0, [self.topic_id]

    def append(self) -> None:
        def text(n: int) -> str:
            out = []
            for _ in range(n):
                self.written += 1
                value = "-" if self.draw.random() < 0.15 else f"v{self.written}"
                out.append(f"{self.draw.choice(KEYS)}={value}")
            return " ".join(out)

        batches = []
        for _ in range(self.draw.randint(1, 3)):
            codec = f"codec={self.draw.choice(['none', 'zstd', 'gzip', 'lz4', 'snappy'])}"
            kind, n = self.draw.random(), self.draw.randint(1, 4)
            pid = self.draw.randint(1, 3)
            if kind < 0.2:
                batches.append(f"{{{codec} pid={pid + 10} txn}} {text(n)} | {{pid={pid + 10} commit}}")
            else:
                producer = f" pid={pid}" if kind < 0.6 else ""
                batches.append(f"{{{codec}{producer}}} {text(n)}")
        self.grow(" | ".join(batches), roll=self.draw.random() < 0.4)

    def do_compact(self) -> None:
        self.compact(force=self.draw.random() < 0.6)

    def do_erase(self) -> None:
        if ("t", 0) not in self.lab.state().checkpoints():
            return
        keys = self.draw.sample(KEYS, self.draw.randint(1, 2))
        report = self.erase(*keys)
        if report.exit_code:  # after a reset to another log, and a rollback to before that: it is never said to be done
            assert report.erased is not None
            assert [r.problem.state for r in report.erased.results if r.problem] == ["diverged"], report.to_text()
            assert report.result == "incomplete"
            self.tally["uncleanable"] += 1
        else:
            assert report.result in ("erased", "vacuum_needed"), report.to_text()

    def do_rollback(self) -> None:
        row = self.lab.state().checkpoints().get(("t", 0))
        if row is None or row.generation < 2:
            return
        try:
            rollback.run(RollbackOptions(str(self.lab.store), self.draw.randint(1, row.generation - 1)), Silent())
            self.tally["rolled back"] += 1
        except UsageError as error:
            assert error.kind in (ERASED_RECORDS, NO_GENERATION), error
            self.tally["rollbacks refused"] += error.kind is ERASED_RECORDS

    def do_reset(self) -> None:
        rows = self.lab.state().current()[1].get(("t", 0), [])
        ours = [row for row in rows if row.root == "store" and row.size_bytes]
        other_log = self.draw.random() < 0.3 or not ours
        if not rows:
            return
        if other_log:
            topic_id = self.lab.state().checkpoints()["t", 0].topic_id
            earlier = [one for one in self.ids if format_uuid(one) != topic_id]
            self.topic_id = self.draw.choice([uuid.UUID(int=self.draw.getrandbits(128)), *earlier])
            self.ids.append(self.topic_id)
            self.write()
        else:
            log = self.lab.path(self.draw.choice(ours))
            for path in log.parent.glob(f"{log.stem}.*"):  # with its filter, without which it cannot be searched
                path.unlink()
        bounds = self.bounds.get(format_uuid(self.topic_id), {})
        unknown = {key for keys in self.bounds.values() for key in keys if bounds.get(key, MAX_OFFSET) == MAX_OFFSET}
        if self.bounds and (unknown or any(bounds.values())):
            report = self.compact(reset=T)
            kinds = [r.problem.kind for r in report.results if r.problem is not None]
            assert kinds == ["erased"], report.to_text()
        report = self.compact(reset=T, hmac_key=self.hmac_key)
        assert report.exit_code == 0, report.to_text()
        self.tally["resets"] += 1
        self.bound(unknown)

    def do_vacuum(self) -> None:
        erased = bool(self.bounds) and self.draw.random() < 0.7
        grace = self.draw.choice([0.0, 168.0])
        options = VacuumOptions(str(self.lab.store), grace_hours=grace, erased=erased)
        report = vacuum.run(options, Silent())
        if erased and not report.kept:
            assert find_keys(self.absent_keys(), self.lab.store) == []
            self.tally["searched"] += 1

    def do_lose_tables(self) -> None:
        state = self.lab.store / "state"
        if ("t", 0) not in self.lab.state().checkpoints():
            return
        aside = self.root / "aside"
        shutil.rmtree(aside, ignore_errors=True)
        state.rename(aside)
        try:
            rebuild_state.run(RebuildStateOptions(str(self.lab.store)), Silent())
            self.tally["rebuilt"] += 1
        except JobError:
            shutil.rmtree(state, ignore_errors=True)
            aside.rename(state)

    def step(self) -> str:
        steps: tuple[tuple[float, Callable[[], None]], ...] = (
            (4, self.append), (3, self.do_compact), (3, self.do_erase), (2, self.do_rollback), (1.5, self.do_reset),
            (2, self.do_vacuum), (0.7, self.do_lose_tables),
        )  # fmt: skip
        (done,) = self.draw.choices([action for _, action in steps], [weight for weight, _ in steps])
        done()
        return done.__name__


def play(name: str, root: Path, tally: Counter[str]) -> str:
    """Run a sequence; return its fault, or ""."""
    shutil.rmtree(root, ignore_errors=True)
    world = World(root, random.Random(name), tally)
    world.append()
    world.grow(f"{KEYS[0]}=begin", roll=True)
    world.compact()
    done: list[str] = []
    for _ in range(STEPS):
        try:
            done.append(world.step())
            tally["steps"] += 1
            wrong = world.judge()
        except Exception as error:  # any error is a failure of the sequence
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            return f"{', '.join(done)}: {wrong}"
    return ""


def test_erased_records_never_reappear_and_no_others_are_lost(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    tally, failures, tried = Counter[str](), [], 0
    seed = request.config.getoption("--attack-seed")
    for name in chosen(request, (f"{seed}.{n}" for n in itertools.count()), FEW, str):
        tried += 1
        if message := play(name, tmp_path / "world", tally):
            failures.append(f"\n{again(request, name)}\n    {message}")
        if len(failures) == 3:
            break
    counts = ", ".join(f"{n:,} {what}" for what, n in sorted(tally.items()))
    line = f"erasures: {tried:,} sequences, {counts}: {len(failures)} failed"
    tell(request, line)
    assert not failures, line + "".join(failures)
    assert tally["rollbacks refused"] or request.config.getoption("--attack-case"), line


def test_check_detects_a_missing_erasure_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The judge detects a reset that reads erased records from the archive again."""
    world = World(tmp_path, random.Random(1), Counter())
    world.grow("a=1 b=1 | a=2", roll=True)
    world.grow("c=1", roll=True)
    world.compact()
    assert world.erase("a").exit_code == 0
    assert world.judge() == ""
    monkeypatch.setattr(plan_inputs.Erasures, "plan_erasure", lambda *_, **__: None)
    world.topic_id = uuid.UUID(int=1)
    world.write()
    world.compact(reset=T)
    world.bound([b"a"])
    assert "b'a' at 2, erased below 4" in world.judge()
