"""Several processes commit to one store concurrently, round by round; each reported outcome is compared with the
history.

    python -m tests.bench.race_commits STORE --writers 8 --rounds 50 --kill 3 --seed 1
    python -m tests.bench.race_commits s3://bucket/race --lose 3      # through a proxy before AWS_ENDPOINT_URL

In a round all writers read the state, wait for each other, and commit a generation of partition 0, which only one
succeeds in. Then each commits a generation of its own partition, and all succeed. With `--kill n` one of them is killed
at any moment of every n-th round, and another takes its place; with `--lose n` every n-th commit's response is lost, of
any writer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from deltalake.exceptions import DeltaError
from pyarrow import fs as pafs

from lastkey.jobs.errors import UNSURE_COMMIT, ConflictError, MachineError, StorageError
from lastkey.jobs.store import commit_file, table, writing
from lastkey.jobs.store.rows import Checkpoint, Commit, RunRow
from lastkey.jobs.store.tables import CHECKPOINTS, State, open_state
from lastkey.logformat.listing import Segment
from tests.builders.s3_proxy import COMMITS, LOSE, every, s3_proxy
from tests.builders.s3_server import environment
from tests.builders.stores import row

ROOT = Path(__file__).resolve().parents[2]
TOPIC = "t"


@dataclass
class Race:
    """Result of a race: the outcome that each run's writer reported (done, conflict, unsure, error); none for a killed
    writer.
    """

    said: dict[str, str] = field(default_factory=dict)
    tried: dict[str, int] = field(default_factory=dict)  # run id -> partition
    errors: list[str] = field(default_factory=list)
    commits: int = 0  # commits to `compaction_checkpoints`
    seconds: float = 0

    def to_text(self) -> str:
        """Return the result in one line."""
        counts = Counter(self.said.get(run_id, "killed") for run_id in self.tried)
        return f"{self.commits} commits; of {len(self.tried)} tries {dict(counts)}; {self.seconds:.1f} s"


def race(store: str, writers: int, rounds: int, *, kill: int = 0, seed: int = 0) -> Race:
    """Let writers race, and check the store at the end. Raises AssertionError if a generation or a file was lost."""
    chance, out, started = random.Random(seed), Race(), time.perf_counter()
    with contextlib.ExitStack() as stack:
        seats = [stack.enter_context(_Seat(store, number)) for number in range(writers)]
        for number in range(rounds):
            for seat in seats:
                out.tried.update(seat.prepare())
            for seat in seats:
                seat.send("go")
            if kill and number % kill == kill - 1:
                time.sleep(chance.uniform(0, 1.5))  # the moment is random: the test covers any moment
                seats[chance.randrange(writers)].kill()
            for seat in seats:
                seat.finish(out)
    out.seconds = time.perf_counter() - started
    _check(State(open_state(store).root), out, writers)
    return out


def _check(state: State, out: Race, writers: int) -> None:
    assert not out.errors, out.errors
    histories = state.histories()
    winners = [run.run_id for chain in histories.values() for run in chain]
    assert len(winners) == len(set(winners))
    for (_, partition), chain in histories.items():
        assert [run.generation_after for run in chain] == list(range(len(chain), 0, -1)), partition
        assert {out.tried[run.run_id] for run in chain} == {partition}
    done = {run_id for run_id, outcome in out.said.items() if outcome == "done"}
    assert done <= set(winners), f"said to be done, and lost: {done - set(winners)}"
    refused = {run_id for run_id, outcome in out.said.items() if outcome == "conflict"}
    assert not refused & set(winners), f"said to be refused, and made: {refused & set(winners)}"
    assert all(partition == 0 for run_id, partition in out.tried.items() if run_id in refused)
    assert len(histories) <= writers + 1
    head = table.head(state.root, CHECKPOINTS)
    ids = [(table.commit_info(state.root, CHECKPOINTS, n) or {}).get(commit_file.ID) for n in range(head.number + 1)]
    out.commits = len(ids)
    assert len(set(ids)) == len(ids), "a commit went in twice"
    assert len(ids) == len(winners), "each commit of the switch is one generation of one partition"
    checkpoints, manifests = state.current()
    for key, rows in manifests.items():
        assert [checkpoints[key].run_id in row.path for row in rows] == [True] * 2
    paths = [state.root.full(row.path) for rows in manifests.values() for row in rows]
    assert all(info.type == pafs.FileType.File for info in state.root.filesystem.get_file_info(paths))
    files = [state.root.full(f"{head.folder}/{path}") for path in head.files()]
    assert all(info.type == pafs.FileType.File for info in state.root.filesystem.get_file_info(files))


class _Seat:
    """Slot of a writer, and of its replacement after a kill."""

    def __init__(self, store: str, number: int) -> None:
        self.store, self.number = store, number
        self.process: subprocess.Popen[str] | None = None
        self.killed = False

    def __enter__(self) -> _Seat:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process is not None:
            self.kill()
            self._leave()

    def send(self, line: str) -> None:
        assert self.process is not None and self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def prepare(self) -> dict[str, int]:
        if self.killed and self.process is not None:
            self._leave()
        if self.process is None:
            command = [sys.executable, "-m", "tests.bench.race_commits", "--writer", str(self.number), self.store]
            self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.killed = False
        self.send("read")
        answer = self._read()
        assert answer is not None, "a writer ended by itself"
        return dict(answer)

    def finish(self, out: Race) -> None:
        for _ in range(2):
            answer = self._read()
            if answer is None:
                assert self.killed, "a writer ended by itself"
                return
            out.said[answer["run_id"]] = answer["said"]
            if answer["said"] == "error":
                out.errors.append(answer["text"])

    def kill(self) -> None:
        assert self.process is not None and self.process.stdin is not None
        self.killed = True
        self.process.kill()
        self.process.wait()

    def _leave(self) -> None:
        assert self.process is not None
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self.process = None

    def _read(self) -> Any:
        assert self.process is not None and self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else None


def write(store: str, number: int, orders: IO[str]) -> None:
    """Run one writer, which reads and commits as the lines of orders say."""
    while orders.readline():
        state = open_state(store)
        checkpoints = state.checkpoints()
        waves = [_commit(checkpoints.get((TOPIC, p)), p) for p in (0, number + 1)]
        _say({wave.checkpoint.run_id: wave.key[1] for wave in waves})
        orders.readline()
        for wave in waves:
            outcome, text = "done", ""
            try:
                for row in wave.segments:
                    _put(state, row.path)
                writing.commit_wave(state, [wave], partial(_there, state, wave))
            except ConflictError:
                outcome = "conflict"
            except (DeltaError, OSError, MachineError, AssertionError) as error:
                if isinstance(error, MachineError) and error.kind is UNSURE_COMMIT:
                    outcome = "unsure"
                elif isinstance(error, MachineError) and not isinstance(error, StorageError):
                    raise
                else:
                    outcome, text = "error", f"{type(error).__name__}: {error}"
            _say({"run_id": wave.checkpoint.run_id, "said": outcome, "text": text})


def _say(what: object) -> None:
    print(json.dumps(what), flush=True)


def _put(state: State, path: str) -> None:
    if state.root.is_local:
        state.root.filesystem.create_dir(state.root.full(path.rpartition("/")[0]))
    with state.root.filesystem.open_output_stream(state.root.full(path)) as stream:
        stream.write(b"x")


def _there(state: State, wave: Commit) -> None:
    infos = state.root.filesystem.get_file_info([state.root.full(row.path) for row in wave.segments])
    assert all(info.type == pafs.FileType.File for info in infos)


def _commit(now: Checkpoint | None, partition: int) -> Commit:
    before, parent = (now.generation, now.run_id) if now is not None else (0, None)
    shared = {"topic": TOPIC, "partition": partition, "run_id": uuid.uuid4().hex}
    folder = f"segments/{TOPIC}-{partition}/{before + 1}-{shared['run_id']}"
    return Commit(
        row(Checkpoint, **shared, generation=before + 1),
        [
            row(Segment, base_offset=i, root="store", path=f"{folder}/{i}.log")
            for i in range(2)
        ],
        row(RunRow, **shared, generation_before=before, generation_after=before + 1, parent_run_id=parent,
             started_ms=time.time_ns() // 1_000_000),  # else the history lets it go as old
    )  # fmt: skip


@contextlib.contextmanager
def losing(n: int, variable: str = "AWS_ENDPOINT_URL") -> Iterator[list[str]]:
    """Make every n-th commit through the endpoint in an environment variable, but lose its answer; yield the list of
    these. 0: lose none.
    """
    if not n:
        yield []
        return
    at = urlsplit(os.environ[variable])
    assert at.port is not None
    with s3_proxy(at.port, every(n, LOSE, on=COMMITS)) as proxy, environment({variable: f"{proxy.url}{at.path}"}):
        yield proxy.happened


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", nargs="?", default=tempfile.mkdtemp())
    for name in ("--writers", "--rounds", "--kill", "--lose", "--seed"):
        parser.add_argument(name, type=int, default={"--writers": 4, "--rounds": 50}.get(name, 0))
    parser.add_argument("--writer", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.writer is not None:
        write(arguments.store, arguments.writer, sys.stdin)
        return
    store = f"{arguments.store.rstrip('/')}/{uuid.uuid4().hex[:8]}"
    with losing(arguments.lose) as lost:
        out = race(store, arguments.writers, arguments.rounds, kill=arguments.kill, seed=arguments.seed)
    print(f"{store}: {arguments.writers} writers, {arguments.rounds} rounds: {out.to_text()}; {len(lost)} answers lost")


if __name__ == "__main__":
    main()
