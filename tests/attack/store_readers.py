"""Every job on a store with one damaged file: it names the problem, or does the same as on the undamaged store.

A job returns its end and its output: logs, rows, a report. Logs that differ from the committed ones are always a
failure, regardless of the report; so is a vacuum that deletes needed files.
"""

from __future__ import annotations

import json
import random
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lastkey.jobs.errors import JobError
from lastkey.jobs.store import table
from lastkey.jobs.store.paths import COMMITTED, TABLES
from lastkey.logformat.errors import LogFormatError
from lastkey.udfs.storage import open_root
from tests.attack import histories, store_damages
from tests.attack.damages import Case
from tests.attack.forked import Failed
from tests.attack.histories import (
    OF_THE_COMMIT,
    VACUUM,
    Child,
    Output,
    StoreState,
    check_end,
    differs,
    grow,
    run,
    shown,
    stands,
)
from tests.attack.judge import EQUAL, NAMED
from tests.attack.races import comparable_rows
from tests.attack.readers import without
from tests.builders.damage import build
from tests.builders.sources import read
from tests.builders.trees import read_tree

NOTED, AS_IT_LIES, OTHER, UNKNOWN, LATER = (
    "equal with a note", "copied unchanged and named by restore",
    "with other fields of a manifest whose checksum is valid", "in a small side file that restore names",
    "that let the next vacuum delete the generation before one without the file `committed`",
)  # fmt: skip
VERDICTS: Final = (NAMED, EQUAL, NOTED, AS_IT_LIES, OTHER, UNKNOWN, LATER)
SMALL: Final = (".snapshot", "leader-epoch-checkpoint", "partition.metadata")


@dataclass(frozen=True)
class Seen:
    """The report of a job, and its output."""

    said: Output
    output: Any


Job = Callable[[Path], Seen]


def _command(*words: str) -> Job:
    """Return a job whose output is its report."""

    def job(root: Path) -> Seen:
        output = run([words[0], "--store", str(root / "store"), *words[1:], "--json"])
        return Seen(output, without(output.report, "seconds", "io", "notes"))

    return job


def _restore(root: Path, *more: str) -> Seen:
    shutil.rmtree(root / "output", ignore_errors=True)
    output = run([*histories.restore(root), *more])
    return Seen(output, read_tree(root / "output") if (root / "output").exists() else {})


def _changes(words: Callable[[Path], list[str]]) -> Job:
    """Return a job that changes the store; its output is the store's state afterwards."""

    def job(root: Path) -> Seen:
        output = run(words(root))
        try:
            now = stands(root / "store")
        except Exception as error:  # the damaged store cannot be read
            return Seen(output, error)
        return Seen(output, now)

    return job


def _data_source(root: Path, **options: str) -> Seen:
    try:
        rows: Any = comparable_rows(read("kafka_log", None, store=str(root / "store"), **options))
    except (JobError, LogFormatError) as error:
        return Seen(Output(3, {"error": str(error)}, ""), None)
    return Seen(Output(0, {"job": "data source"}, ""), rows)


def _rebuild(root: Path) -> Seen:
    shutil.rmtree(root / "store" / "state")
    return _changes(lambda root: ["rebuild-state", "--store", str(root / "store"), "--json"])(root)


def _vacuum(root: Path) -> Seen:
    output = run(VACUUM(root))
    return Seen(output, set(read_tree(root / "store" / "segments")))


JOBS: Final[dict[str, Job]] = {
    "compact": _changes(histories.compact),
    "restore": _restore,
    "restore of an older generation": lambda root: _restore(root, "--generation", "1"),
    "verify": _command("verify"),
    "lookup": _command("lookup", "--offset", "3", "--offset", "50", "--time", "latest", "--time", "1700000000020"),
    "data source": _data_source,
    "data source on an older generation": lambda root: _data_source(root, generation="1"),
    "vacuum": _vacuum,
    "rollback": _changes(lambda root: ["rollback", "--store", str(root / "store"), "--generation", "1", "--json"]),
    "runs": _command("runs"),
    "rebuild-state": _rebuild,
}


class Attacked:
    """One job and a store, which is restored before each case."""

    def __init__(self, name: str, work: Path) -> None:
        self.name, self.job, self.work = name, JOBS[name], work
        self.root, self.base = work / "store root", work / "store base"
        if not self.base.exists():
            Child(self._build, work).result()
        self.files = read_tree(self.base / "store")
        self.reset()
        self.archive = read_tree(self.root / "archive")
        self.healthy: Seen = Child(lambda: self.job(self.root), work).result()
        assert self.healthy.said.code == 0, self.healthy

    def _build(self) -> None:
        """Build the store with the same names in each run, so that cases have names."""
        drawn = random.Random(0)
        uuid.uuid4 = lambda: uuid.UUID(int=drawn.getrandbits(128), version=4)
        shutil.rmtree(self.root, ignore_errors=True)
        part = build(self.root / "archive")
        shutil.copytree(part.folder, part.root / "t-1")
        histories.write_settings(self.work)
        for number in range(2):
            assert run(histories.compact(self.root)).code == 0
            grow(self.root / "archive", number)
            if number == 0:
                store = open_root(str(self.root / "store"))
                for name in TABLES:
                    if (version := table.head(store, name).number) >= 0:
                        table.checkpoint(store, name, version)
        shutil.copytree(self.root, self.base)

    def reset(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.base, self.root)

    def verdict(self, case: Case) -> str:
        """Run a case; return one of VERDICTS. Raises Failed."""
        self.reset()
        changes = store_damages.damaged(self.files, case)
        store_damages.put(changes, self.root / "store")
        seen = self.job(self.root)
        check_end(seen.said)
        if read_tree(self.root / "archive") != self.archive:
            raise Failed("the archive changed")
        return self._judged(case, changes, seen)

    def _judged(self, case: Case, changes: dict[str, bytes | None], seen: Seen) -> str:
        if self.name == "vacuum":
            self._check_kept(changes, seen)
        if self.name == "compact":
            self._check_committed(changes, seen)
        if seen.said.code:
            if self.name.startswith("restore") and seen.output:
                raise Failed(f"exit code {seen.said.code}, and left {sorted(seen.output)[:5]}")
            self._check_named(changes, seen.said)
            return NAMED
        new_notes = [note for note in _notes(seen.said) if note not in _notes(self.healthy.said)]
        output, expected = _as_damaged(seen.output, {}), _as_damaged(self.healthy.output, changes)
        if new_notes:
            self._check_named(changes, seen.said)
        if output == expected:
            return NOTED if new_notes else EQUAL
        if self.name == "verify" and new_notes:  # verify names files that it could not compare as not checked
            return NOTED
        if self.name == "vacuum" and any("left alone" in note for note in new_notes):  # all needed files are there
            return NOTED
        if self.name == "vacuum" and output > expected and all(path.endswith(f"/{COMMITTED}") for path in changes):
            return LATER
        if self.name == "runs" and any("are not in the table cleaner_runs" in note for note in new_notes):
            return NOTED
        restores = self.name.startswith("restore")
        small = not restores and all(path.endswith(SMALL) for path in changes)
        if small and _without_small(output) == _without_small(expected):
            return UNKNOWN
        if case.kind == "json+crc" and self.name in ("rebuild-state", "rollback"):
            return OTHER
        reads = self.name.startswith(("data source", "lookup"))
        if reads and case.kind == "swapped" and case.path.endswith(".log") and self._restore_names():
            return AS_IT_LIES
        raise Failed(f"said done ({new_notes}), and {differs(output, expected)}")

    def _check_named(self, changes: dict[str, bytes | None], seen: Output) -> None:
        """Check that the job names a damaged file, or its table or generation, and no other file."""
        text = " ".join([*_problem_parts(seen.report), seen.stderr])
        if not any(_names(text, path) for path in changes):
            raise Failed(f"no word of {sorted(changes)}: {shown(seen)}")
        others = {path for path in self.files if path in text}
        if others and not others & {name for path in changes for name in (path, *_are_named(path))}:
            raise Failed(f"not {sorted(changes)} is named, but {sorted(others)[:3]}: {shown(seen)}")

    def _check_kept(self, changes: dict[str, bytes | None], seen: Seen) -> None:
        if lost := _as_damaged(self.healthy.output, changes) - seen.output:
            raise Failed(f"vacuum took {sorted(lost)}: {shown(seen.said)}")

    def _check_committed(self, changes: dict[str, bytes | None], seen: Seen) -> None:
        """Check that each partition is at the old generation or at the new one, regardless of the report."""
        if not isinstance(seen.output, StoreState):
            return
        for key, files in seen.output.files.items():
            whole = self.healthy.output.files[key]
            if seen.output.generations[key] > 2 and _log_files(files) != _log_files(whole):
                raise Failed(f"{key}: another generation: {differs(files, whole)}: {shown(seen.said)}")

    def _restore_names(self) -> bool:
        """Return whether restore, which reads everything, finds a log that differs from the committed one."""
        return any(_restore(self.root, *more).said.code for more in ((), ("--generation", "1")))


_TELLING: Final = ("error", "problem", "problems", "notes", "not_checked", "skipped")


def _problem_parts(report: Any) -> Iterator[str]:
    """Yield the parts of a report that describe problems."""
    if isinstance(report, dict):
        for name, value in report.items():
            if name in _TELLING:
                yield json.dumps(value)
            else:
                yield from _problem_parts(value)
    elif isinstance(report, list):
        for one in report:
            yield from _problem_parts(one)


def _are_named(path: str) -> tuple[str, ...]:
    """Return the files that messages may name instead of another: an index's log; for Delta's checkpoint the hint that
    names it; for its checksum both.
    """
    stem, hint = path.rpartition(".")[0], f"{path.rpartition('/')[0]}/_last_checkpoint"
    if path.endswith(".lastkey-crc32c"):
        return f"{stem}.checkpoint.parquet", hint
    if path.endswith(".checkpoint.parquet"):
        return (hint,)
    return (f"{stem}.log",) if path.endswith("index") else ()


def _names(text: str, path: str) -> bool:
    """Return whether a text names a file of the store, or its table or generation."""
    room, name, *below = path.split("/")
    if room == "state":
        return name in text
    run_id = below[0].partition("-")[2]
    return f"{room}/{name}/{below[0]}" in text or (name in text and run_id in text)


def _notes(text: Output) -> list[str]:
    return [*text.report.get("notes", ()), *text.report.get("not_checked", ())]


def _log_files(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.endswith(".log")}


def _as_damaged(output: Any, changes: dict[str, bytes | None]) -> Any:
    """Return the expected output if the store has these changes and a job copies damaged files as they are."""
    if isinstance(output, StoreState):
        files = {}
        for key, of in output.files.items():
            folder = f"{output.folders[key]}/"
            here = {p.removeprefix(folder): data for p, data in changes.items() if p.startswith(folder)}
            here = {name: data for name, data in here.items() if name not in OF_THE_COMMIT}
            files[key] = {name: data for name, data in (of | here).items() if data is not None}
        return output.generations, files
    if isinstance(output, set):
        removed = {path for path, data in changes.items() if data is None and not path.endswith(f"/{COMMITTED}")}
        return output - {path.removeprefix("segments/") for path in removed}  # vacuum writes `committed` again
    return output


def _without_small(output: Any) -> Any:
    """Return an output without the contents of small side files."""
    if isinstance(output, dict):
        left = {k: v for k, v in output.items() if not str(k).endswith((*SMALL, "leader_epoch"))}
        return {k: _without_small(v) for k, v in left.items()}
    if isinstance(output, list | tuple):
        return [_without_small(one) for one in output]
    return output
