"""Memory that hostile bytes may cost, measured from outside of the process, for every job and every bomb.

The limit of a batch is 64 MiB here, by the setting. A job takes at most what it takes for a healthy archive, and three
times the limit: what was decompressed, the buffer that it grew from, and one more for what a codec or an index holds.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import google_crc32c
import pyarrow as pa
import pytest

from lastkey.logformat.writing.encode import BatchOptions, encode_batches
from lastkey.logformat.writing.formats import Magic
from tests.builders.formats import converted
from tests.conftest import ROOT
from tests.reference import v3
from tests.reference.log import ZSTD, Batch, data_batch

MIB = 1 << 20
LIMIT = 64 * MIB
ALLOWED = 3 * LIMIT
LARGEST = 2**31 - 1  # bytes of a segment
Measured = Callable[..., tuple[int, int, str]]

_JOBS = """
import sys
from lastkey.jobs.command.cli import main
sys.exit(main(sys.argv[1:]))
"""
# Imports what all of them need once, and forks a child for each: imports are nearly all of a run's time. A forked child
# has a peak of its own (Linux: ru_maxrss of a started one begins with its starter's)
_FORKS = """
import importlib, json, os, sys, traceback
from lastkey.jobs.command import cli, functions
for module in functions.JOBS.values():
    importlib.import_module(module)
import pandas, tests.builders.damage, tests.builders.sources, tests.builders.splits
for line in sys.stdin:
    code, words, said = json.loads(line)
    forked = os.fork()
    if not forked:
        for number in (1, 2):
            os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        sys.argv, status = ["-c", *words], 0
        try:
            exec(code)
        except SystemExit as ended:
            status = ended.code or 0
        except BaseException:
            traceback.print_exc()
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    _, status, usage = os.wait4(forked, 0)
    print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_maxrss * 1024]), flush=True)
"""
# Work of the tasks of compact, report and the data source, without the Java that starts them
_TASK = """
import sys
from dataclasses import replace
from pathlib import Path
from tests.builders.damage import Partition
from tests.builders.plans import changed
part = Partition(Path(sys.argv[2]), Path(sys.argv[3]))
plan = part.plan(sealed=True)
plan = changed(plan, settings=replace(plan.policy.settings, max_decompressed_batch_bytes=int(sys.argv[4])))
if sys.argv[1] == "compact":
    from lastkey.udfs.compact.compact_partition import compact_partition
    problem = compact_partition(plan).problem
elif sys.argv[1] == "splits":
    from tests.builders.splits import compact_in_blocks
    problem = compact_in_blocks(plan).result.problem
elif sys.argv[1] == "profile":
    from lastkey.udfs.report.measure_partition import ProfilePlan, profile_partition
    problem = profile_partition(ProfilePlan(plan, True)).problem
elif sys.argv[1] == "time_index":
    from lastkey.udfs.lookup.minutes import TimedSegment, time_index_rows
    limit = int(sys.argv[4])
    logs = [TimedSegment("t", 0, s, limit) for s in plan.input.segments]
    problem = [text for text in time_index_rows(logs)["problem"].to_pylist() if text]
elif sys.argv[1] in ("rows", "keys"):
    from tests.builders.sources import read_only
    given = dict(columns="key,offset") if sys.argv[1] == "keys" else {}
    assert read_only("kafka_log", sys.argv[2], maxDecompressedBatchBytes=sys.argv[4], **given) == int(sys.argv[5])
    problem = None
elif sys.argv[1] == "erasure":
    from lastkey.udfs.key_search.find_keys import search_files
    from lastkey.udfs.key_search.findings import SearchFile
    from lastkey.udfs.key_search.key_set import KeySet
    logs = [(s.path, s.size_bytes) for s in plan.input.segments]
    files = [SearchFile(sys.argv[2], path, size, 0, "log", max_batch_bytes=int(sys.argv[4])) for path, size in logs]
    problem = search_files(KeySet.of([b"missing-key"]), None, files).problems
else:
    from tests.builders.sources import read
    rows = read("kafka_log", sys.argv[2], badRecords="quarantine", maxDecompressedBatchBytes=sys.argv[4])
    problem = [row["problem"] for row in rows.to_pylist() if row["problem"]]
print(problem)
sys.exit(3 if problem else 0)
"""


def zeros_in_33_kib() -> bytes:
    """Return a zstd frame of 1 GiB."""
    block = (1 << 20 | 2).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd\x00\x58" + block * 8191 + (1 << 20 | 3).to_bytes(3, "little") + b"\0"


def with_body(codec: int, body: bytes, *, length: int | None = None) -> bytes:
    """Return the log's second batch, which has the largest timestamp, with this body."""
    data = bytearray(data_batch(4, [(50, b"k", b"v")] * 4).data[:61] + body)
    struct.pack_into(">i", data, 8, len(data) - 12 if length is None else length)
    struct.pack_into(">h", data, 21, codec)
    struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
    return bytes(data)


def wide_batch() -> bytes:
    """Return the log's second batch, of which magic 3 compresses both sections."""
    return data_batch(4, [(50, b"k" * 100, b"v")] * 4, codec=ZSTD).data


def signed(batch: bytes) -> bytes:
    """Return a batch of magic 3 with the checksum of its bytes."""
    return batch[:17] + struct.pack(">I", google_crc32c.value(batch[21:]) ^ 0xFFFFFFFF) + batch[21:]


BOMBS: dict[str, Callable[[], bytes]] = {
    "zstd": lambda: with_body(4, zeros_in_33_kib()),
    "gzip members": lambda: with_body(1, gzip.compress(bytes(16 * MIB)) * 64),
    "magic 3": lambda: signed(v3.with_headers(v3.to_v3(wide_batch()), zeros_in_33_kib())),
    "sparse": lambda: with_body(0, b"", length=LARGEST - 12 - len(data_batch(0, [(1, b"key", b"value")] * 4).data)),
}


def build(root: Path, bomb: str | None) -> Path:
    """Write `t-0` with three batches, of which the middle one is a bomb, and an active segment."""
    folder = root / "t-0"
    folder.mkdir(parents=True)
    whole: list[Batch] = [data_batch(base, [(1, b"key", b"value")] * 4) for base in (0, 4, 8)]
    middle = whole[1].data if bomb is None else BOMBS[bomb]()
    log = folder / f"{0:020d}.log"
    log.write_bytes(whole[0].data + middle)
    if bomb == "sparse":
        os.truncate(log, LARGEST)
    else:
        log.write_bytes(log.read_bytes() + whole[2].data)
    (folder / f"{12:020d}.log").write_bytes(data_batch(12, [(1, b"key", b"value")]).data)
    return root


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    """Yield a function that runs code and returns its exit code, its peak memory and its output."""
    folder = tmp_path_factory.mktemp("said")
    with subprocess.Popen(
        [sys.executable, "-c", _FORKS], env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip

        def run(code: str, *words: str) -> tuple[int, int, str]:
            assert process.stdin is not None and process.stdout is not None
            output_file = folder / str(len(list(folder.iterdir())))
            process.stdin.write(json.dumps([code, words, str(output_file)]) + "\n")
            process.stdin.flush()
            ended, peak = json.loads(process.stdout.readline())
            return ended, peak, output_file.read_text(errors="replace")

        yield run


def command(job: str, root: Path, config: Path) -> list[str]:
    settings = ["--config", str(config)]
    log = str(root / "t-0" / f"{0:020d}.log")
    jobs = {
        "inspect": ["inspect", log, *settings],
        "inspect records": ["inspect", log, "--print", "records", *settings],
        "inspect values": ["inspect", log, "--print", "data", *settings],
        "verify": ["verify", str(root), "--sealed", *settings],
        "reindex": ["reindex", str(root), "--check", "--engine", "threads", *settings],
        "lookup time": ["lookup", str(root), "--time", "1", "--time", "50", *settings],
        "lookup offset": ["lookup", str(root), "--offset", "9", *settings],
    }
    if job in jobs:
        return [_JOBS, *jobs[job]]
    return [_TASK, job, str(root), str(root.parent / "store"), str(LIMIT)]


# Headers say all that a look-up by offset needs, and all that indexes are made of where bodies are not opened
UNHARMED = {("inspect", "zstd"), ("inspect", "gzip members"), ("reindex", "zstd"), ("reindex", "gzip members")}
UNHARMED |= {("inspect", "magic 3"), ("reindex", "magic 3")}
JOBS = (
    "inspect", "inspect records", "inspect values", "verify", "reindex", "lookup time", "compact", "splits", "profile",
    "time_index", "data source",
)  # fmt: skip


SIDE_FILES = (
    "t-0/00000000000000000000.index", "t-0/00000000000000000000.timeindex", "t-0/00000000000000000000.txnindex",
    "t-0/00000000000000000012.snapshot", "t-0/leader-epoch-checkpoint", "t-0/partition.metadata",
    "log-start-offset-checkpoint", "cleaner-offset-checkpoint", "replication-offset-checkpoint", "meta.properties",
)  # fmt: skip
SPARSE_BYTES = 3 << 30


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("config") / "settings.toml"
    path.write_text(f'[defaults]\n"max.decompressed.batch.bytes" = {LIMIT}\n')
    return path


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_decompression_bomb_needs_no_more_memory_than_an_intact_archive(
    job: str, measured: Measured, tmp_path: Path, config: Path
) -> None:
    roots = {bomb: build(tmp_path / (bomb or "healthy") / "archive", bomb) for bomb in (None, *BOMBS)}
    (code, healthy, output), *measurements = (measured(*command(job, root, config)) for root in roots.values())
    assert code == (3 if job == "reindex" else 0), output  # there are no indexes
    for bomb, (code, peak, output) in zip(BOMBS, measurements, strict=True):
        print(f"{job}, {bomb}: {peak / MIB:.0f} MiB, healthy {healthy / MIB:.0f} MiB, exit code {code}")
        assert peak < healthy + ALLOWED, output
        if (job, bomb) not in UNHARMED:
            assert code == 3, output
            assert "max.decompressed.batch.bytes" in output


@pytest.mark.slow
@pytest.mark.parametrize("job", ["inspect folder", "verify", "reindex", "lookup time", "compact", "profile"])
def test_oversized_side_files_need_bounded_memory(job: str, measured: Measured, tmp_path: Path, config: Path) -> None:
    """All of them at once, 3 GiB each: none is read, and the log is."""
    root = build(tmp_path / "archive", None)
    arguments = command(job if job != "inspect folder" else "inspect", root, config)
    if job == "inspect folder":
        arguments[arguments.index("inspect") + 1] = str(root)
    _, healthy, _ = measured(*arguments)
    for name in SIDE_FILES:
        (root / name).touch()
        os.truncate(root / name, SPARSE_BYTES)
    code, peak, output = measured(*arguments)
    print(f"{job}: {peak / MIB:.0f} MiB, healthy {healthy / MIB:.0f} MiB, exit code {code}")
    assert peak < healthy + 100 * MIB, output
    assert code in (0, 3), output
    if job in ("inspect folder", "verify"):
        assert code == 3 and str(SPARSE_BYTES) in output


LARGE = 32 * MIB  # largest batch here
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def build_large(root: Path, magic: Magic) -> int:
    """Write `t-0` with a log for each codec: batches of a third of the largest, and one of nearly that size. Return the
    number of records.
    """
    (root / "t-0").mkdir(parents=True)
    draw, n = random.Random(5), 0
    for codec in CODECS:
        first, log = n, b""
        for records in (10, 29, 10):
            rows = pa.record_batch(
                {
                    "key": [b"key-%d" % (i % 30) for i in range(n, n + records)],
                    "value": [draw.randbytes(1 << 10) * (MIB >> 10) for _ in range(records)],
                    "timestamp_ms": pa.array(range(n, n + records)),
                }
            )
            log += encode_batches(rows, n, BatchOptions(codec=codec)).tobytes()
            n += records
        (root / "t-0" / f"{first:020d}.log").write_bytes(converted(log, magic))
    (root / "t-0" / f"{n:020d}.log").write_bytes(data_batch(n, [(1, b"key", b"value")]).data)
    return n + 1


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> dict[Magic, tuple[Path, int]]:
    """Return archives of large batches in either format, and the numbers of their records."""
    root = tmp_path_factory.mktemp("large")
    formats: tuple[Magic, ...] = (2, 3)
    return {
        magic: (root / f"v{magic}" / "archive", build_large(root / f"v{magic}" / "archive", magic)) for magic in formats
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "job", ["inspect records", "verify", "compact", "splits", "profile", "rows", "keys", "erasure"]
)
def test_memory_for_large_batches_is_within_the_bound_of_a_task(
    job: str, measured: Measured, large: dict[Magic, tuple[Path, int]], tmp_path: Path
) -> None:
    config = tmp_path / "settings.toml"
    config.write_text(f'[defaults]\n"max.decompressed.batch.bytes" = {LARGE}\n')
    healthy = build(tmp_path / "healthy" / "archive", None)

    def peak(root: Path, n: int) -> int:
        command_line = command(job, root, config)
        if command_line[0] is _TASK:
            command_line[3:] = [str(tmp_path / root.parent.name / "store"), str(LARGE), str(n)]
        code, peak_bytes, output = measured(*command_line)
        assert code == 0, output
        return peak_bytes

    least = peak(healthy, 13)
    for magic, (root, n) in large.items():
        peak_memory = peak(root, n)
        # COMPACTION.md, "Costs": a chunk, decompressed batches, and three times one batch; four with magic 3. Rows of
        # the data source stand in an Arrow batch too
        batches = 3 + (magic == 3) + (job == "rows")
        bound = (8 + 32) * MIB + batches * LARGE
        print(
            f"{job}, magic {magic}: {(peak_memory - least) / MIB:.0f} MiB more than a small archive, "
            f"at most {bound / MIB:.0f}"
        )
        assert peak_memory < least + bound
