"""Stores and archives of a few records, the jobs that change them, and the invariants that are checked after any fault.

Jobs run in forked children of a process that has imported all modules and compiled all kernels. This process never
touches delta-rs itself, whose threads do not survive a fork. So a job takes 50 to 100 milliseconds.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import pickle
import secrets
import select
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Final

from lastkey.jobs.command import cli, functions
from lastkey.jobs.errors import JobError
from lastkey.jobs.store.tables import open_state
from lastkey.logformat.names import CLEAN_SHUTDOWN
from tests.attack.forked import Failed
from tests.attack.preload import Control, Noted, Order
from tests.builders.damage import NOW_MS, SEGMENT_OFFSETS, START_MS, batch_at, build
from tests.builders.leases import expire_leases
from tests.builders.trees import read_tree, tree
from tests.reference.log import data_batch

KILLED: Final = -9
MANIFEST: Final = "manifest of the tables"
OF_THE_COMMIT: Final = ("manifest.json", "committed")
TEMPORARY: Final = "tmp"
_CODES: Final = {0, 2, 3, 4, 5}
_TOML: Final = """
[defaults]
"cleanup.policy" = "compact"
"min.cleanable.dirty.ratio" = 0.0
"index.interval.bytes" = 0
[job]
"engine" = "threads"
"split.by" = "{way}"
"split.bytes" = {split}
"task.memory.bytes" = {memory}
"""
_BY_YIELD: Final = """
[defaults]
"cleanup.policy" = "compact"
"compaction.schedule" = "yield"
"compaction.min.yield" = 0.3
"min.cleanable.dirty.ratio" = 0.0
"index.interval.bytes" = 0
[job]
"engine" = "threads"
"""
_KEY = tuple[str, int]
_LARGE_BYTES: Final = 7 << 19  # six exceed the quarter of task.memory.bytes that may wait in memory


class Named(Failed):
    """Error of a run that failed and named the problem, as required after false success of a disk write."""


@dataclass(frozen=True)
class Output:
    """The end of a run. code: its exit code, less than 0 for a signal."""

    code: int
    report: dict[str, Any]
    stderr: str

    @property
    def killed(self) -> bool:
        return self.code == KILLED


@dataclass(frozen=True)
class StoreState:
    """The state of a store: the generation of each partition, and the files of its folder without the manifest."""

    generations: dict[_KEY, int]
    files: dict[_KEY, dict[str, bytes]]
    run_ids: dict[_KEY, str] = field(default_factory=dict)
    folders: dict[_KEY, str] = field(default_factory=dict)


def run(words: list[str]) -> Output:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(words)
    text = out.getvalue()
    return Output(code, json.loads(text) if text else {}, err.getvalue())


def stands(store: Path) -> StoreState:
    """Return the state of a store. Call it in a process of its own, because it asks delta-rs."""
    state = open_state(str(store))
    try:
        rows, manifests = state.current()
    except JobError as error:
        raise Named(error.line()) from error
    files = {}
    for key, row in rows.items():
        files[key] = {name: data for name, data in read_tree(store / row.folder).items() if name not in OF_THE_COMMIT}
        files[key][MANIFEST] = repr([astuple(row) for row in manifests[key]]).replace(row.run_id, "RUN").encode()
    return StoreState(
        {key: row.generation for key, row in rows.items()}, files, {key: row.run_id for key, row in rows.items()},
        {key: row.folder for key, row in rows.items()},
    )  # fmt: skip


def restored(output: Path) -> dict[str, tuple[str, int]]:
    """Return the files of a log directory: SHA-256, and mtime for those that keep theirs (0 for others)."""
    files = tree(output) if output.exists() else {}
    return {p: (sha, at if p.endswith(".log") else 0) for p, (sha, at) in files.items() if sha != "folder"}


class Child:
    """Work in a forked process; `result` returns its result, or raises its error as Failed."""

    def __init__(self, work: Callable[[], Any], folder: Path) -> None:
        self.answer = folder / f"answer-{os.getpid()}-{id(self)}"
        self.status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                made = pickle.dumps((None, work()))
                code = 0
            except BaseException as error:
                failed = isinstance(error, Failed)
                message = str(error) if failed else "".join(traceback.format_exception(error)[-8:])
                made = pickle.dumps((type(error) if failed else Failed, message))
            self.answer.write_bytes(made)
            os._exit(code)

    def ended(self, seconds: float) -> bool:
        """Return whether the process ends within so many seconds."""
        if self.status is None and not self._wait(os.WNOHANG):
            process = os.pidfd_open(self.pid)
            select.select([process], [], [], seconds)
            os.close(process)
        return self.status is not None or self._wait(os.WNOHANG)

    def _wait(self, how: int) -> bool:
        pid, status = os.waitpid(self.pid, how)
        if pid:
            self.status = os.waitstatus_to_exitcode(status)
        return bool(pid)

    def result(self) -> Any:
        """Wait for the result of the work; None if the process was killed."""
        if self.status is None:
            self._wait(0)
        status = self.status
        if status == KILLED:
            return None
        failed, made = pickle.loads(self.answer.read_bytes())
        self.answer.unlink()
        if failed is not None:
            raise failed(made)
        return made


@dataclass(frozen=True)
class Kind:
    """A job under attack. words: its command line; the other fields describe the store and archive that it starts
    with.
    """

    name: str
    words: Callable[[Path], list[str]]
    grown: bool = True  # the archive has more than the store's generation
    damaged: bool = False  # indexes of the archive are damaged
    copies: bool = False  # beside the archive are two damaged copies of it
    generations: int = 1  # generations in the store
    keeps: bool = False  # the job must keep everything below segments/
    only: str | tuple[str, ...] = ""  # only mishaps whose names begin so; with others it acts as another kind does
    by_yield: bool = False  # runs by yield: segments of the store stay, and others are rewritten
    spills: bool = False  # more output waits than fits in a task's memory

    @property
    def below(self) -> str:
        """Folder of the attacked operations: a job that spills does all others as a job that does not."""
        return TEMPORARY if self.spills else ""


def compact(root: Path, way: str = "auto") -> list[str]:
    return [*_by_the_clock(root, way), "--now", str(NOW_MS)]


def _by_the_clock(root: Path, way: str = "auto") -> list[str]:
    config = root.parent / f"{way}.toml"
    return ["compact", str(root / "archive"), "--store", str(root / "store"), "--config", str(config), "--json"]


def _reindex(root: Path) -> list[str]:
    return ["reindex", str(root / "archive"), "--in-place", "--engine", "threads", "--json"]


def _store_command(job: str, *more: str) -> Callable[[Path], list[str]]:
    return lambda root: [job, "--store", str(root / "store"), *more, "--json"]


def restore(root: Path, to: str = "output") -> list[str]:
    return ["restore", "--store", str(root / "store"), "--output", str(root / to), "--json"]


def _merge(root: Path) -> list[str]:
    copies, output = str(root / "copies"), str(root / "output")
    return ["merge", copies, "--layout", "replicas", "--output", output, "--engine", "threads", "--json"]


VACUUM: Final = _store_command("vacuum", "--grace-hours", "0")
VERIFY: Final = _store_command("verify")
KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind("compact", compact),
        Kind("first compact", compact, generations=0),
        Kind("compact that spills", lambda root: compact(root, "spilling"), generations=0, spills=True),
        # files that cannot be read cost it time only: it then leaves other files than undisturbed
        Kind(
            "compact by yield",
            lambda root: compact(root, "yield"),
            generations=4,
            only=("killed", "power cut"),
            by_yield=True,
        ),
        Kind("reindex", _reindex, damaged=True),
        Kind("restore", restore, generations=2),
        Kind("merge", _merge, copies=True),
        Kind("vacuum", VACUUM, generations=2),
        Kind("vacuum with a grace", _store_command("vacuum"), generations=2, keeps=True, only="clock"),
        Kind("compact by the clock", _by_the_clock, only="clock"),
        Kind("rollback", _store_command("rollback", "--generation", "1"), generations=2),
        Kind("verify", VERIFY, generations=2),
    )
}


EPOCHS: Final = "leader-epoch-checkpoint"
COMPACTIONS: Final = (
    "compact", "first compact", "compact that spills", "compact by yield", "compact by the clock",
)  # fmt: skip


def grow(archive: Path, number: int) -> None:
    """Add two segments to one partition, one to the other."""
    last = 4 + 2 * number
    for partition, n in ((0, 2), (1, 1)):
        folder = archive / f"t-{partition}"
        for segment in range(last, last + n) if partition == 0 else range(4 + number, 5 + number):
            base = segment * SEGMENT_OFFSETS
            data = b"".join(batch_at(base + 4 * i).data for i in range(3))
            (folder / f"{base:020}.log").write_bytes(data)


def grow_by_yield(archive: Path, number: int) -> None:
    """Add a segment to both partitions: many keys that stay at first, then a few that come again each time."""
    base = (4 + number) * SEGMENT_OFFSETS
    for partition in (0, 1):
        keys = [b"cold %d" % n for n in range(12)] if number == 0 else [b"hot", b"warm", b"cold %d" % number] * 4
        records = [(START_MS + base + n, key, b"value %d" % (base + n)) for n, key in enumerate(keys)]
        (archive / f"t-{partition}" / f"{base:020}.log").write_bytes(data_batch(base, records, leader_epoch=3).data)


def write_settings(work: Path) -> None:
    """Write settings for the ways of `compact`."""
    for name, way, split, memory in (
        ("auto", "auto", 1 << 30, 1 << 30),
        ("spilling", "auto", 1 << 30, 64 << 20),
    ):  # fmt: skip
        (work / f"{name}.toml").write_text(_TOML.format(way=way, split=split, memory=memory))
    (work / "yield.toml").write_text(_BY_YIELD)


class History:
    """One kind of job: the trees that it begins with, and its results undisturbed."""

    thorough = True  # run verify and vacuum too, even on a store that is byte for byte as they saw it before

    def __init__(self, kind: Kind, work: Path, control: Control, root: Path | None = None) -> None:
        """Run the job undisturbed. root: the attacked tree, on a file system of its own."""
        self.kind, self.work, self.control = kind, work, control
        self.root, self.base = root or work / "root", work / f"base {kind.name}"
        self.trash = work / "trash"
        write_settings(self.root.parent)
        self._build()
        self.reset()
        self.before = tree(self.root)
        self.said, self.noted = self.attacked(None, noting=True)
        if self.said.code:
            raise AssertionError(f"{kind.name}, undisturbed: {self.said}")
        reasons = {one["reason"] for p in self.said.report.get("partitions", ()) for one in p.get("schedule", ())}
        if reasons != ({"kept", "yield"} if kind.by_yield else set()):
            raise AssertionError(f"{kind.name}: segments are {reasons}")
        self.after = read_tree(self.root)
        self.restored = restored(self.root / "output")
        self.stood: StoreState = self.child(lambda: stands(self.root / "store"))
        self.goal = self._goal()
        self.exact = self._exact() if kind.damaged else {}
        self.cleaned = {} if kind.damaged else self.child(self._clean)

    def _build(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        part = build(self.root / "archive")
        shutil.copytree(part.folder, part.root / "t-1")
        (self.root / TEMPORARY).mkdir()
        if self.kind.spills:
            self._grow_large()
        for number in range(self.kind.generations):
            self.ended(self.kind.words(self.root) if self.kind.by_yield else compact(self.root))
            if number + 1 < self.kind.generations or self.kind.grown:
                (grow_by_yield if self.kind.by_yield else grow)(self.root / "archive", number)
        if self.kind.damaged:
            index = self.root / "archive" / "t-0" / f"{SEGMENT_OFFSETS:020}.index"
            index.write_bytes(index.read_bytes()[:-3])
            (self.root / "archive" / "t-1" / f"{SEGMENT_OFFSETS:020}.timeindex").unlink()
            (self.root / "archive" / "t-1" / f"{0:020}.index").write_bytes(b"")
        if self.kind.copies:
            self._make_copies()
        shutil.rmtree(self.base, ignore_errors=True)
        shutil.copytree(self.root, self.base)

    def _make_copies(self) -> None:
        """Copy the archive twice; one copy lacks a segment, in the other a bit of each partition is flipped."""
        for name in ("1", "2"):
            shutil.copytree(self.root / "archive", self.root / "copies" / name)
        (self.root / "copies" / "1" / "t-0" / f"{SEGMENT_OFFSETS:020}.log").unlink()
        for folder in (self.root / "copies" / "2").glob("t-*"):
            log = folder / f"{0:020}.log"
            data = bytearray(log.read_bytes())
            data[len(data) // 2] ^= 1
            log.write_bytes(data)

    def _grow_large(self) -> None:
        """Add a segment larger than a task's memory, in which each batch loses a record and is rewritten; and one
        behind it.
        """
        folder = self.root / "archive" / "t-0"
        base = 4 * SEGMENT_OFFSETS
        with (folder / f"{base:020}.log").open("wb") as file:
            for offset in range(base, base + SEGMENT_OFFSETS, 2):
                records = [(START_MS, b"often", b"value"), (START_MS, b"large %d" % offset, bytes(_LARGE_BYTES))]
                file.write(data_batch(offset, records, leader_epoch=3).data)
        base += SEGMENT_OFFSETS
        (folder / f"{base:020}.log").write_bytes(batch_at(base).data)

    def reset(self) -> None:
        """Restore everything as it was before the job."""
        for path in (self.root, self.trash):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.base, self.root)
        self.trash.mkdir()

    def child(self, work: Callable[[], Any]) -> Any:
        return Child(work, self.work).result()

    def ended(self, words: list[str]) -> Output:
        """Run a command undisturbed to its end."""
        output: Output | None = self.child(lambda: run(words))
        assert output is not None
        return output

    def start(self, order: Order | None, *, noting: bool = False, trash: bool = False) -> Child:
        """Start the job under attack."""

        def work() -> Output:
            tempfile.tempdir = str(self.root / TEMPORARY)
            secrets.randbits = lambda bits: (1 << bits) // 3  # key hashes decide the files: the same each time
            self.control.begin(order, noting=noting, trash=self.trash if trash else None)
            try:
                return run(self.kind.words(self.root))
            finally:
                self.control.end()

        return Child(work, self.work)

    def attacked(self, order: Order | None, *, noting: bool = False, trash: bool = False) -> tuple[Output, list[Noted]]:
        output = self.start(order, noting=noting, trash=trash).result() or Output(KILLED, {}, "")
        return output, self.control.noted() if noting else []

    # -- what must hold

    def check(self, output: Output) -> None:
        """Check everything after a run under attack, and after the expiry of a lease that it could not delete."""
        check_end(output)
        expire_leases(self.root / "store")
        self.check_archive()
        if self.kind.keeps and read_tree(self.root / "store" / "segments") != read_tree(
            self.base / "store" / "segments"
        ):
            raise Failed(f"something young is gone: {shown(output)}")
        self.child(lambda: self._check_in_child(output))
        self.check_archive()

    def check_archive(self) -> None:
        now = tree(self.root)
        for path, found in self.before.items():
            if not path.startswith(("archive/", "copies/")) or (self.kind.damaged and not path.endswith(".log")):
                continue
            if now.get(path) != found:
                raise Failed(f"{path}: was {found}, is {now.get(path)}")
        more = {p for p in now if p.startswith(("archive/", "copies/"))} - self.before.keys()
        if more and not self.kind.damaged:
            raise Failed(f"new in the archive: {more}")

    def _check_in_child(self, output: Output) -> None:
        of = self.kind.name
        store = self.root / "store"
        if of == "reindex":
            self._check_reindexed(output)
            return
        if of == "restore":
            self._check_restored(output)
        if of == "merge":
            self._check_merged(output)
        now = stands(store) if (store / "state").exists() else StoreState({}, {})
        if of in COMPACTIONS:
            self._check_committed(output, now)
        elif of == "rollback":
            wanted = dict.fromkeys(now.generations, 3)  # with the files of generation 1
            if output.code == 0 and now.generations != wanted:
                raise Failed(f"said done, and {now.generations}")
            behind = "/cleaner_state/" in output.report.get("error", {}).get("path", "")  # written after the commit
            if output.code > 0 and output.code != 5 and not behind and set(now.generations.values()) != {2}:
                raise Failed(f"exit code {output.code}, and {now.generations}")
        elif now.generations != self.stood.generations:
            raise Failed(f"generations {now.generations}, expected {self.stood.generations}")
        if now.generations and (self.thorough or now.files != self.stood.files):
            well(f"verify after {shown(output)}", run(VERIFY(self.root)))
        self._check_next(output)

    def check_beside(self, output: Output, other: Output) -> None:
        """Check after two jobs at once: both reports are true, everything is whole, and the next run leaves the usual
        logs.
        """
        self.child(lambda: self._check_beside_in_child(output, other))
        self.check_archive()

    def _check_beside_in_child(self, output: Output, other: Output) -> None:
        store = self.root / "store"
        now = stands(store)
        if self.kind.name == "restore":
            self._check_restored(output, self._restored_now(output))
        if self.kind.name == "merge":
            self._check_merged(output)
        back = {
            (p["topic"], p["partition"]): p["generation_before"]
            for folder in (output, other)
            if folder.report.get("job") == "rollback"
            for p in folder.report.get("partitions", ())
        }
        for folder in (output, other):
            for p in folder.report.get("partitions", ()) if folder.report.get("job") == "compact" else ():
                key = p["topic"], p["partition"]
                undone = back.get(key) == p["generation"] is not None  # by the other job, which came later
                if p["generation"] is not None and now.generations.get(key, 0) < p["generation"] and not undone:
                    raise Failed(f"{key}: said generation {p['generation']}, is {now.generations.get(key)}")
        if now.generations:
            well(f"verify; said {shown(output)}; beside it {shown(other)}", run(VERIFY(self.root)))
        well(f"the next run; said {shown(output)}; beside it {shown(other)}", run(compact(self.root)))
        now = stands(store)
        for words in (VERIFY, VACUUM, VERIFY):
            well(f"after the next run; said {shown(output)}; beside it {shown(other)}", run(words(self.root)))
        logs = {key: _logs(found) for key, found in now.files.items()}
        if logs != self.cleaned:
            raise Failed(f"the next run leaves {differs(logs, self.cleaned)}")
        left = {path.parent.name for path in (store / "segments").rglob("*.*") if path.is_file()}
        if removed := {f"{now.generations[key]}-{now.run_ids[key]}" for key in now.generations} - left:
            raise Failed(f"vacuum took {removed}")

    def _clean(self) -> dict[_KEY, dict[str, bytes]]:
        """Compact everything in the archive, undisturbed; return the logs of the generations."""
        well("compact", run(compact(self.root)))
        return {key: _logs(found) for key, found in stands(self.root / "store").files.items()}

    def _exact(self) -> dict[str, bytes]:
        """Return the archive with the index files that reindex makes: they may replace unreadable ones."""
        archive, output = self.root / "archive", self.root / "exact"
        self.ended(["reindex", str(archive), "--output", str(output), "--engine", "threads", "--json"])
        return read_tree(archive) | read_tree(output)

    def _goal(self) -> Any:
        """Return the result of an undisturbed next run, after an undisturbed run."""
        return self.child(self._next)

    def _next(self) -> Any:
        of, root = self.kind.name, self.root
        if of == "verify":
            return None
        if of in ("restore", "merge"):
            shutil.rmtree(root / "output", ignore_errors=True)
        output = run(self.kind.words(root))
        well("the next run", output)
        if of in ("restore", "merge"):
            return restored(root / "output")
        if of == "reindex":
            return read_tree(root / "archive")
        now = stands(root / "store")
        if of == "rollback":
            return now.generations, now.files
        if of in ("vacuum", "vacuum with a grace"):
            return now.generations, now.files, now.run_ids
        if not self.thorough:
            return now.generations, now.files, None
        well("verify after the next run", run(VERIFY(root)))
        well("vacuum after the next run", run(VACUUM(root)))
        left = sorted(
            path.relative_to(root).as_posix().replace(now.run_ids[key], "RUN")
            for key, folder in ((key, root / f"store/segments/{key[0]}-{key[1]}") for key in now.generations)
            for path in folder.rglob("*")
            if path.is_file() and path.parent.name == f"{now.generations[key]}-{now.run_ids[key]}"
        )
        return now.generations, now.files, left

    def _check_next(self, output: Output) -> None:
        generation = self._next()
        expected = self.goal
        if self.kind.name in COMPACTIONS:
            generation, expected = (
                (
                    g,
                    {key: self._rebuilt_epochs_omitted(output, files) for key, files in f.items()},
                    left if self.thorough else None,
                )
                for g, f, left in (generation, self.goal)
            )
        if generation != expected:
            raise Failed(f"the next run leaves something else than undisturbed ones: {differs(generation, self.goal)}")

    def _check_committed(self, output: Output, now: StoreState) -> None:
        old = dict.fromkeys(self.stood.generations, self.kind.generations)
        for key in self.stood.generations:
            generation = now.generations.get(key, 0)
            if generation not in (old[key], old[key] + 1):
                raise Failed(f"{key}: generation {generation}")
            if generation > old[key] and self._rebuilt_epochs_omitted(
                output, now.files[key]
            ) != self._rebuilt_epochs_omitted(output, self.stood.files[key]):
                raise Failed(f"{key}: another {generation}: {differs(now.files[key], self.stood.files[key])}")
        if output.killed:
            return
        if output.code == 0 and now.generations != self.stood.generations:
            raise Failed(f"said done, and generations are {now.generations}")
        reported = {(p["topic"], p["partition"]): p for p in output.report.get("partitions", ())}
        for key, p in reported.items():
            if p["generation"] is not None and now.generations.get(key) != p["generation"]:
                raise Failed(f"{key}: said generation {p['generation']}, is {now.generations.get(key)}")
            if p["generation"] is None and now.generations.get(key, 0) > old[key]:
                raise Failed(f"{key}: generation {now.generations[key]} was committed; said {p['status']}")

    def _rebuilt_epochs_omitted(self, output: Output, files: dict[str, bytes]) -> dict[str, bytes]:
        """Return the files without the leader epochs if a note says that they come from the batches, because the
        archive's file could not be read.
        """
        again = EPOCHS in json.dumps(output.report.get("notes", ()))
        return {name: data for name, data in files.items() if name != EPOCHS or not again}

    def check_false_success(self, output: Output) -> None:
        """Check after false success of disk writes. The job may succeed, but `verify` must find and name the damage in
        a store. `verify` also checks a restored folder, but cannot compare its small side files with anything.
        """
        try:
            if self.kind.name in ("restore", "merge") and output.code == 0:
                self.child(self._check_looked_at)
                return
            if self.kind.name in COMPACTIONS:
                self.child(lambda: well(f"verify after {shown(output)}", run(VERIFY(self.root))))
            self.check(output)
        except Named:
            self.check_archive()

    def _check_looked_at(self) -> None:
        files = restored(self.root / "output")
        if self.kind.copies:  # a lie about temporary files can make it take the same log from other copies
            partitions = {path.split("/")[0] for path in self.restored if "/" in path}
            if all(_log(read_tree(self.root), name) == _log(self.after, name) for name in partitions):
                return
        if wrong := [p for p, found in self.restored.items() if p.endswith(".log") and files.get(p) != found]:
            well(f"verify of {wrong}", run(["verify", str(self.root / "output"), "--sealed", "--json"]))
            raise Failed(f"other logs, and verify says nothing: {wrong}")

    def _restored_now(self, output: Output) -> dict[str, tuple[str, int]]:
        """Return the files to restore, also if the other run came first and committed the restored generation."""
        if all(p["generation"] == self.kind.generations for p in output.report.get("partitions", ())):
            return self.restored
        again = self.root / "restored again"
        well("restore", run(restore(self.root, again.name)))
        restored_files = restored(again)
        shutil.rmtree(again)
        return restored_files

    def _check_restored(self, output: Output, expected: dict[str, tuple[str, int]] | None = None) -> None:
        expected = self.restored if expected is None else expected
        files = restored(self.root / "output")
        whole = _shas(files) == _shas(expected)
        if output.code == 0 and files != expected:
            raise Failed(f"said done, and {differs(files, expected)}")
        if CLEAN_SHUTDOWN in files and not whole:
            raise Failed(f"looks like a whole log directory: {differs(files, expected)}")
        if output.code > 0 and files and "left in" not in json.dumps(output.report):
            raise Failed(f"left {sorted(files)[:5]}, and does not say so: {shown(output)}")

    def _check_merged(self, output: Output) -> None:
        """Check that a partition is whole, or absent and named. From copies of which a file could not be read comes
        the same log, perhaps in other segments, or one with a named gap.
        """
        reported = {f"{p['topic']}-{p['partition']}": p for p in output.report.get("partitions", ())}
        if not reported:
            self._check_restored(output)
            return
        files = restored(self.root / "output")
        for name, p in reported.items():
            merged, expected = (
                {path: one for path, one in of.items() if path.startswith(f"{name}/")} for of in (files, self.restored)
            )
            if p["refused"] and (merged or not p["problems"]):
                raise Failed(f"{name}: refused, with {sorted(merged)}: {p}")
            if output.report["problems"]:
                continue
            if merged != expected and '"unreadable"' not in json.dumps(output.report):
                raise Failed(f"{name}: {differs(merged, expected)}: {shown(output)}")
            if _log(read_tree(self.root), name) != _log(self.after, name):
                raise Failed(f"{name}: another log, and no problem: {shown(output)}")

    def _check_reindexed(self, output: Output) -> None:
        old, now = read_tree(self.base / "archive"), read_tree(self.root / "archive")
        new = {p.removeprefix("archive/"): data for p, data in self.after.items() if p.startswith("archive/")}
        for path, data in now.items():
            if path.endswith(".tmp") and (output.killed or "impossible" in json.dumps(output.report) or output.code):
                continue
            if data not in (old.get(path), new.get(path), self.exact.get(path)):
                raise Failed(f"{path}: neither the old file nor the new one")
        if removed := old.keys() - now.keys():
            raise Failed(f"gone: {removed}")
        if output.code == 0 and not self._is_right(now, new):
            raise Failed(f"said done, and {differs(now, new)}: {shown(output)}")
        rebuilt = self._next()
        if not self._is_right(rebuilt, self.goal):
            raise Failed(f"the next run: {differs(rebuilt, self.goal)}")

    def _is_right(self, found: dict[str, bytes], expected: dict[str, bytes]) -> bool:
        return found.keys() == expected.keys() and all(
            data in (expected[path], self.exact[path]) for path, data in found.items()
        )


def _shas(files: dict[str, tuple[str, int]]) -> dict[str, str]:
    """Return SHA-256 by path, without the file whose presence tells a broker that all others are whole."""
    return {path: found[0] for path, found in files.items() if path != CLEAN_SHUTDOWN}


def _log(files: dict[str, bytes], partition: str) -> bytes:
    folder = f"output/{partition}/"
    return b"".join(data for path, data in sorted(files.items()) if path.startswith(folder) and path.endswith(".log"))


def _logs(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.endswith(".log")}


def check_end(output: Output) -> None:
    """Check that a run ended in an allowed way: no defect, and a report."""
    if output.killed:
        return
    if output.code not in _CODES:
        raise Failed(f"exit code {output.code}: {shown(output)}")
    if "Traceback" in output.stderr or "please report" in output.stderr or '"defect"' in json.dumps(output.report):
        raise Failed(f"a defect in what is said: {shown(output)}")
    if not output.report:
        raise Failed(f"exit code {output.code}, and no report: {output.stderr[-2000:]}")


def well(what: str, output: Output) -> None:
    """Check that an undisturbed run succeeded. Raises Named if its report states the reason of a failure."""
    check_end(output)
    if output.code:
        raise Named(f"{what}: {shown(output)}")


def shown(output: Output) -> str:
    report = output.report.get("error") or {k: v for k, v in output.report.items() if k not in ("seconds", "archive")}
    return f"{output.code}: {json.dumps(report, default=str)[:1500]} {output.stderr[-3000:]}"


def differs(found: Any, expected: Any) -> str:
    if isinstance(found, dict) and isinstance(expected, dict):
        wrong = [k for k in found.keys() | expected.keys() if found.get(k) != expected.get(k)]
        inner = [differs(found.get(k), expected.get(k)) for k in wrong[:3]]
        return f"{wrong[:6]}: {inner}"
    if isinstance(found, tuple) and isinstance(expected, tuple):
        return "; ".join(differs(a, b) for a, b in zip(found, expected, strict=True) if a != b)
    return f"{str(found)[:200]}, expected {str(expected)[:200]}"


def warm() -> None:
    """Import and compile everything that jobs need, in the process that forks. Leave out delta-rs."""
    import importlib

    import pandas  # noqa: F401 - pyarrow imports it with the first table

    from tests.attack import readers

    for module in functions.JOBS.values():
        importlib.import_module(module)
    import pyarrow as pa

    pa.table({"a": [1]}).join(pa.table({"a": [1]}), ["a"]).sort_by("a")
    with tempfile.TemporaryDirectory() as folder:
        part = build(Path(folder) / "archive")
        for job in ("compact", "verify", "reindex", "lookup", "data source"):
            readers.JOBS[job](part.root, Path(folder))
    sys.stdout.flush()
    gc.collect()
    gc.freeze()  # otherwise each fork's collector touches, and so copies, all of this
