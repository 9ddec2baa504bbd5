"""Every request of a run on a bucket, with every mishap.

Archive and store lie in a bucket behind a proxy, the job is a process of its own. Its n-th request is cut, refused,
done without an answer, done twice or done when the run is over; from the n-th on all are refused; or the process is
killed there. Afterwards the archive's objects must be unchanged, the store must have the old generation or the new one,
and the exit code must be correct. An undisturbed run must then give the bytes of an undisturbed history, and vacuum
must leave no other files.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from pyarrow import fs as pafs

from tests.attack import summary
from tests.attack.driver import Driver, Ended
from tests.attack.forked import Tried
from tests.builders.logs import write_partition
from tests.builders.s3_proxy import CUT, LOSE, SLOW_DOWN, Fault, S3Proxy, s3_proxy
from tests.builders.s3_server import BUCKET, s3_server

pytestmark = [pytest.mark.attack, pytest.mark.slow]

DENIED = Fault(status=403, code="AccessDenied")
MISHAPS = {
    "cut": CUT,  # tried again by the libraries
    "lost answer": LOSE,
    "busy": SLOW_DOWN,
    "denied": DENIED,  # never tried again
    "denied from here on": DENIED,
    "twice": Fault(twice=True),
    "late": Fault(cut=True, late=True),
    "killed before": CUT,
    "killed after": LOSE,
}
JOBS = ("compact a new store", "compact what has grown", "vacuum", "restore")
VERDICTS = ("as if nothing had happened", "ended with an error and the next run made it good", "killed, and the same")
BEFORE = {"t-0": "a=1 b=2 | {codec=zstd} a=3 d=1 || c=3 a=4 | b=5 || c=9", "u-0": "x=1 y=2 | {pid=7} x=3 || y=3"}
AFTER = {"t-0": f"{BEFORE['t-0']} | a=6 || d=2", "u-0": f"{BEFORE['u-0']} | x=5 || x=6"}
CONFIG = '[defaults]\n"cleanup.policy" = "compact"\n"min.cleanable.dirty.ratio" = 0.0\n'
NOW = "1800000000000"
ARCHIVE = f"{BUCKET}/archive"
_ARCHIVED = "logs/archive"
FEW = 1  # requests: six runs against a bucket each


@dataclass
class World:
    """A bucket with an archive that has grown since `logs/templates/old` was made from it."""

    driver: Driver
    proxy: S3Proxy
    files: pafs.FileSystem  # past the proxy
    direct: dict[str, str]  # environment variables for access past the proxy
    config: Path
    work: Path
    archive: dict[str, str]  # object -> digest of bytes and time
    expected: dict[str, dict[str, str]] = field(default_factory=dict)  # job -> restored file -> digest
    left: dict[str, list[str]] = field(default_factory=dict)  # job -> files of segments after a vacuum
    requests: dict[str, int] = field(default_factory=dict)  # job -> number of its requests
    number: Iterator[int] = field(default_factory=itertools.count)

    def run(self, *words: str, proxied: bool = False) -> Ended:
        return self.driver.run(words, {"AWS_ENDPOINT_URL": self.proxy.url} if proxied else self.direct)

    def well(self, *words: str) -> str:
        """Run a job undisturbed; return its output."""
        ended = self.run(*words)
        assert ended.code == 0, f"an undisturbed {words[0]} ended with {ended}"
        return ended.out

    def store_for(self, job: str) -> str:
        """Make a store for one run, in the state that the job needs."""
        name = f"stores/{next(self.number)}"
        template = {"compact what has grown": "old", "vacuum": "new", "restore": "new"}.get(job)
        if template is not None:
            self.copy(f"templates/{template}", name)
        return f"{BUCKET}/{name}"

    def copy(self, store: str, to: str) -> None:
        files = self.files
        pafs.copy_files(f"logs/{store}", f"logs/{to}", source_filesystem=files, destination_filesystem=files)

    def words(self, job: str, store: str) -> list[str]:
        if job == "vacuum":
            return ["vacuum", "--store", store, "--grace-hours", "0", "--json"]
        if job == "restore":
            return ["restore", "--store", store, "--output", str(self.work / "out"), "--json"]
        options = ["--config", str(self.config), "--now", NOW, "--engine", "threads", "--json"]
        return ["compact", ARCHIVE, "--store", store, *options]

    def restored(self, store: str) -> dict[str, str]:
        shutil.rmtree(self.work / "restored", ignore_errors=True)
        self.well("restore", "--store", store, "--output", str(self.work / "restored"))
        return digests(self.work / "restored")

    def segments(self, store: str) -> list[str]:
        """Return the files of its generations, without their folders, whose names the runs draw."""
        objects = self.objects(f"{store.removeprefix('s3://')}/segments")
        return sorted(path.rpartition("/")[2] for path in objects)

    def delete_leases(self, store: str) -> None:
        """Delete the leases of runs that could not delete them, in place of a wait until they expire."""
        for path in self.objects(f"{store.removeprefix('s3://')}/state/running"):
            self.files.delete_file(path)

    def objects(self, folder: str) -> dict[str, str]:
        """Return a digest of bytes and time for each object."""
        infos = self.files.get_file_info(pafs.FileSelector(folder, recursive=True, allow_not_found=True))
        files = [info for info in infos if info.type == pafs.FileType.File]
        return {f.path: digest(self.files.open_input_stream(f.path).read()) + str(f.mtime_ns) for f in files}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def digests(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): digest(p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    work = tmp_path_factory.mktemp("bucket")
    config = work / "config.toml"
    config.write_text(CONFIG)
    driver = Driver()
    with s3_server() as port, s3_proxy(port) as proxy:
        direct = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        files = pafs.S3FileSystem(endpoint_override=f"127.0.0.1:{port}", scheme="http", region="eu-central-1")
        made = World(driver, proxy, files, direct, config, work, {})
        compact = made.words("compact", f"{BUCKET}/templates/old")
        try:
            for state in (BEFORE, AFTER):
                for name, log in state.items():
                    shutil.rmtree(work / "archive" / name, ignore_errors=True)
                    write_partition(work / "archive" / name, log)
                pafs.copy_files(str(work / "archive"), _ARCHIVED, destination_filesystem=files)
                made.well(*compact)
                if state is BEFORE:
                    pafs.copy_files(
                        "logs/templates/old",
                        "logs/templates/new",
                        source_filesystem=files,
                        destination_filesystem=files,
                    )
                    compact[compact.index("--store") + 1] = f"{BUCKET}/templates/new"
            made.archive = made.objects(_ARCHIVED)
            yield made
        finally:
            driver.close()


@dataclass(frozen=True)
class Case:
    """The n-th request of a job, from 0, meets a mishap."""

    job: str
    mishap: str
    n: int

    def __str__(self) -> str:
        return f"{self.job}/{self.mishap}/{self.n}"


def disturbed(world: World, case: Case, store: str) -> tuple[Ended, int]:
    """Run the job with a mishap; return its end, and the number of its requests."""
    lock, seen, over = threading.Lock(), 0, False

    def decide(method: str, path: str) -> Fault | None:
        nonlocal seen
        with lock:  # hold the lock during a kill: a late one must not end the next job
            seen += 1
            at = seen - 1
            if over or at < case.n or (at > case.n and case.mishap != "denied from here on"):
                return None
            if case.mishap.startswith("killed"):
                world.driver.kill()
        return MISHAPS[case.mishap]

    world.proxy.decide = decide
    shutil.rmtree(world.work / "out", ignore_errors=True)
    ended = world.run(*world.words(case.job, store), proxied=True)
    with lock:
        over = True
    world.proxy.decide = lambda method, path: None
    world.proxy.deliver()
    return ended, seen


def prepare(world: World, job: str) -> None:
    """Record the result of an undisturbed history, and the number of the job's requests."""
    store = world.store_for(job)
    ended, world.requests[job] = disturbed(world, Case(job, "cut", 1 << 30), store)
    assert ended.code == 0, ended
    world.expected[job] = world.restored(store)
    world.well("vacuum", "--store", store, "--grace-hours", "0")
    world.left[job] = world.segments(store)


def judged(world: World, case: Case) -> str:
    """Run a case; return one of VERDICTS. Raises AssertionError for a forbidden end."""
    store = world.store_for(case.job)
    ended, _ = disturbed(world, case, store)
    world.delete_leases(store)
    assert not ended.hung, "hung"
    assert "Traceback" not in ended.err and "defect" not in ended.err + ended.out, ended
    if case.mishap.startswith("killed"):
        assert ended.code in (None, 0), ended  # 0: the run did not wait for that request
    else:
        assert ended.code in (0, 3, 4, 5, 6), ended
    assert world.objects(_ARCHIVED) == world.archive, "the archive changed"
    if case.job == "restore":
        if ended.code == 0:
            assert digests(world.work / "out") == world.expected[case.job], "what was restored is not what there is"
    elif ended.code == 0 and case.job != "vacuum":
        again = json.loads(world.well(*world.words(case.job, store)))
        assert not [p for p in again["partitions"] if p["status"] != "not_due"], (
            f"it said that it had, and the next run found this to do: {again}"
        )
    if case.job != "vacuum" or ended.code != 0:
        world.well(*world.words("compact", store))
    world.well("verify", "--store", store)
    assert world.restored(store) == world.expected[case.job], "other bytes than an undisturbed history's"
    world.well("vacuum", "--store", store, "--grace-hours", "0")
    assert world.restored(store) == world.expected[case.job], "vacuum took what was needed"
    assert world.segments(store) == world.left[case.job], "vacuum left what nothing needs"
    assert world.objects(_ARCHIVED) == world.archive, "the archive changed"
    return VERDICTS[2 if ended.code is None else 1 if ended.code else 0]


@pytest.mark.parametrize("job", JOBS)
def test_job_survives_faults_of_a_bucket(request: pytest.FixtureRequest, world: World, job: str) -> None:
    prepare(world, job)
    cases = [Case(job, mishap, n) for mishap in MISHAPS for n in range(world.requests[job])]
    of = len(cases)
    random.Random(request.config.getoption("--attack-seed")).shuffle(cases)
    tried = Tried(dict.fromkeys(VERDICTS, 0))
    by_name = {str(case): case for case in cases}
    for case in summary.chosen(request, cases, FEW, by_name.__getitem__):
        try:
            tried.counts[judged(world, case)] += 1
        except AssertionError as error:
            hung = str(error) == "hung"
            tried.hangs += hung
            tried.crashes += not hung
            tried.failures.append((str(case), str(error)))
    summary.judged(request, f"faults in a bucket, {job}", tried, of, "faulty requests")
