"""The matrix of `python -m tests.bench.bench_compact --matrix FILE`: compaction against Kafka's cleaner, cell by cell.

A cell is one archive. Kafka's cleaner runs in-process, in as many JVMs as there are cores or partitions; ours as one
task after the other in one process (work only), and as whole runs of the job in threads and on Spark; in turn, over the
same files. The floor is what the system's own tools take to read the log, sum its checksums, and copy what stays. Each
result is a JSON line of FILE at once, and a cell that FILE holds is not run again: a stopped run continues, and a cell
whose line is deleted is measured again. `--page` writes the tables of BENCHMARKS.md and its plots from such a file.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import google_crc32c

from docs.make_pictures import HERE, THEMES, WIDTH, Colours, Drawing
from lastkey.logformat.batches.chunks import ChunkBuffer, LogRange, Tail, read_chunks
from lastkey.logformat.layout import BATCH_OVERHEAD, CODEC_MASK, CODEC_NAMES
from lastkey.logformat.primitives.codec import Scratch, compress, read_body
from lastkey.udfs.storage import open_root, opened
from tests.bench.make_log import SEGMENT_BYTES, keys_for, make_partition
from tests.kafka_lab import oracle
from tests.kafka_lab.jvm import LabJvm

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "BENCHMARKS.md"
BEGIN, END = "<!-- made by python -m tests.bench.bench_compact --page -->\n", "<!-- until here -->\n"
COLUMNS = (
    "codec", "log, MB", "Kafka, s", "work, s", "ratio", "library, s", "floor, s", "threads, s", "Spark, s",
    "memory, MB",
)  # fmt: skip
WHOLE = (1000, 0.5, 1, False)  # value_bytes, survivors, partitions, one_record of the cells with all columns
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CORES = os.cpu_count() or 1
_RECORD_BYTES = 28  # approximate size of a record without its value

Row = dict[str, Any]  # a line of the file
Seconds = Callable[[Path, Path], float]


@dataclass(frozen=True)
class Cell:
    """An archive of the matrix."""

    codec: str
    value_bytes: int = 1000
    survivors: float = 0.5
    partitions: int = 1
    one_record: bool = False
    megabytes: int = 1000  # size of the records before compression

    @property
    def name(self) -> str:
        """Name for the command line, tables and plots."""
        batches = "1-record" if self.one_record else "full"
        kept = f"{self.survivors:.0%}"
        return f"{self.codec}/{self.value_bytes}B/{kept}/{self.partitions}p/{batches}/{self.megabytes}MB"

    def make(self, archive: Path) -> int:
        """Write the archive; return the bytes of its logs."""
        each = self.megabytes * 1_000_000 // (self.value_bytes + _RECORD_BYTES) // self.partitions
        for i in range(self.partitions):
            make_partition(
                archive / f"bench-{i}", self.codec, records=each, keys=keys_for(self.survivors, each),
                value_bytes=self.value_bytes, batch_bytes=1 if self.one_record else None, seed=i + 1,
            )  # fmt: skip
        return sum(log.stat().st_size for log in archive.glob("*/*.log"))


def cells(megabytes: int) -> Iterator[Cell]:
    """Yield the matrix: values, survivors, partitions and batches around one cell for each codec, then larger logs."""
    for codec in CODECS:
        for value in (1000, 100, 10_000):
            yield Cell(codec, value, megabytes=megabytes)
        for survivors in (0.1, 0.95):
            yield Cell(codec, survivors=survivors, megabytes=megabytes)
        yield Cell(codec, partitions=16, megabytes=megabytes)
        yield Cell(
            codec, 100, one_record=True, megabytes=megabytes // 8
        )  # batches of 16 bytes and more a byte of value
        yield Cell(codec, 100, megabytes=megabytes // 8)  # to compare with
    for times in (4, 16):
        for codec in ("none", "zstd"):
            yield Cell(codec, megabytes=times * megabytes)


def run(file: Path, pattern: str, megabytes: int, repeat: int, ours: Seconds, whole: Callable[..., Row]) -> None:
    """Run the cells with `pattern` in their names that `file` lacks. ours: seconds of one partition's task; whole: a
    run of the job in an engine.
    """
    done = {row["name"] for row in read(file)}
    for cell in cells(megabytes):
        if pattern in cell.name and cell.name not in done:
            with tempfile.TemporaryDirectory(prefix="lastkey-bench-") as name:
                row = measure(cell, Path(name), repeat, ours, whole)
            with file.open("a") as out:
                out.write(json.dumps(row) + "\n")
            print(f"{cell.name}: {row['kafka'] / row['work']:.2f} times Kafka's cleaner, work only", flush=True)


def read(file: Path) -> list[Row]:
    """Return the rows of a file; none if there is none."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def measure(cell: Cell, work: Path, repeat: int, ours: Seconds, whole: Callable[..., Row]) -> Row:
    """Measure one cell, everything in turn."""
    archive, load = work / "archive", os.getloadavg()[0]
    size = cell.make(archive)
    singles = []  # each partition as an archive of its own, for one task
    for folder in sorted(archive.iterdir()):
        singles.append(work / "single" / folder.name)
        singles[-1].mkdir(parents=True)
        (singles[-1] / folder.name).symlink_to(folder)
    ours(singles[0], work)  # page cache, compiled kernels
    timings: dict[str, list[float]] = {"kafka": [], "work": [], "threads": [], "spark": [], "floor": [], "library": []}
    peaks: dict[str, int] = {}
    with KafkaCleaners(min(CORES, cell.partitions)) as kafkas:
        for i in range(repeat + 1):  # the first time compiles Java's code
            seconds = kafkas.clean(archive, work / "kafka")
            if i:
                timings["kafka"].append(seconds)
                settle(work, size)
                timings["work"].append(sum(ours(single, work) for single in singles))
    for _ in range(repeat):
        for engine in ("threads", "spark"):
            report = whole(archive, work, engine)
            timings[engine].append(report["seconds"])
            peaks[engine] = max(peaks.get(engine, 0), report["peak_memory_bytes"])
        timings["floor"].append(floor(archive, work, report["bytes_after"]))
        timings["library"].append(time_library(archive, cell))
    return asdict(cell) | {key: statistics.median(value) for key, value in timings.items()} | {
        "name": cell.name, "each": timings, "log_bytes": size, "left_bytes": report["bytes_after"], "peaks": peaks,
        "repeat": repeat, "cores": CORES, "machine": processor(), "load": load, "commit": commit(),
        "at": datetime.now(UTC).isoformat(timespec="minutes"),
    }  # fmt: skip


def settle(folder: Path, n_bytes: int) -> None:
    """Let the disk write what the last run left, and touch as much memory as the next one may: a virtual machine gives
    free memory back to its host, and the next process that touches it waits for it.
    """
    os.sync()
    zeros = folder / "zeros"
    with zeros.open("wb") as file:
        subprocess.run(["head", "-c", str(n_bytes), "/dev/zero"], stdout=file, check=True)
    zeros.unlink()


class KafkaCleaners:
    """JVMs that clean partitions beside each other, as a broker's cleaner threads do."""

    def __init__(self, n: int) -> None:
        self._jvms = [LabJvm() for _ in range(n)]

    def __enter__(self) -> KafkaCleaners:
        return self

    def __exit__(self, *_: object) -> None:
        for jvm in self._jvms:
            jvm.close()

    def clean(self, archive: Path, copy: Path) -> float:
        """Return the seconds in which a copy of the archive is cleaned: its own, of the slowest thread."""
        shutil.copytree(archive, copy, copy_function=shutil.copy2)
        settle(copy, sum(log.stat().st_size for log in archive.glob("*/*.log")))
        folders = sorted(copy.iterdir())
        clean = {"segment_bytes": SEGMENT_BYTES, "dedupe_buffer_bytes": 128 << 20}
        specs = [asdict(oracle.CleanSpec(folder, 1_800_000_000_000, **clean)) for folder in folders]

        def part(i: int) -> float:
            rounds = self._jvms[i].call("clean", logs=specs[i :: len(self._jvms)])
            return sum(float(run["seconds"]) for run in rounds)

        with ThreadPoolExecutor(len(self._jvms)) as pool:
            slowest = max(pool.map(part, range(len(self._jvms))))
        shutil.rmtree(copy)
        return slowest


def floor(archive: Path, work: Path, left: int) -> float:
    """Return the seconds to read all logs, sum their CRC-32C, and copy as many bytes as stay, each by one thread."""
    logs = sorted(map(str, archive.glob("*/*.log")))
    kept = work / "kept"
    with kept.open("wb") as out:
        cat = subprocess.Popen(["cat", *logs], stdout=subprocess.PIPE)
        subprocess.run(["head", "-c", str(left)], stdin=cat.stdout, stdout=out, check=True)
        cat.communicate()
    start = time.perf_counter()
    subprocess.run(["sh", "-c", 'cat "$@" > /dev/null', "sh", *logs], check=True)
    for log in logs:
        with Path(log).open("rb") as file:
            crc = 0
            while part := file.read(8 << 20):
                crc = google_crc32c.extend(crc, part)
    subprocess.run(["cp", str(kept), str(work / "copied")], check=True)
    subprocess.run(["sync", str(work / "copied")], check=True)
    return time.perf_counter() - start


def time_library(archive: Path, cell: Cell) -> float:
    """Return the seconds of the codec's library alone for what any cleaner asks of it: to decompress all bodies, to
    compress what stays of each, and to decompress that once more, as a check. 0 where a call costs more than its work.
    """
    total, before, after, codec = 0.0, Scratch(), Scratch(), CODEC_NAMES.index(cell.codec)
    if cell.codec == "none" or cell.one_record:
        return 0.0
    buffer = ChunkBuffer(8 << 20, 1 << 30)
    for log in sorted(archive.glob("*/*.log")):
        with opened(open_root(str(log.parent)), log.name) as file:
            for chunk in read_chunks(file, log.name, LogRange(0, log.stat().st_size), buffer, Tail(), check_crc=False):
                batches = chunk.batches[chunk.batches["attributes"] & CODEC_MASK == codec]  # the last one has no codec
                ends = (batches["position"] - chunk.position + batches["size"]).tolist()
                starts = (batches["position"] - chunk.position + BATCH_OVERHEAD).tolist()
                start = time.perf_counter()
                for at, end in zip(starts, ends, strict=True):
                    size = read_body(codec, chunk.raw.data[at:end], before, 0, 1 << 30)
                    left = compress(codec, before.view[: int(size * cell.survivors)])
                    read_body(codec, memoryview(left), after, 0, 1 << 30)
                total += time.perf_counter() - start
    return total


def processor() -> str:
    """Return the processor's name, as Linux tells it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def commit() -> str:
    """Return the checkout's commit."""
    return subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()


def write_page(file: Path) -> None:
    """Write the tables of BENCHMARKS.md between its marks, and the plots, from a file of results."""
    rows = read(file)
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + tables(rows) + END + rest.partition(END)[2])
    for theme, colours in THEMES.items():
        (HERE / f"benchmark-{theme}.svg").write_text(plot(colours, rows))


def tables(rows: Sequence[Row]) -> str:
    """Return two tables, ratios of all cells by codec and all columns of the cells of WHOLE, and the machine."""
    archives: dict[tuple[Any, ...], dict[str, str]] = {}
    for row in rows:
        archive = row["value_bytes"], row["survivors"], row["partitions"], row["one_record"], row["megabytes"]
        cell = f"{ratio(row):.2f} ({row['kafka']:.2f}/{row['work']:.2f})"
        archives.setdefault(archive, {})[row["codec"]] = cell
    lines = [
        "",
        f"| value, B | survive | partitions | batches | MB | {' | '.join(CODECS)} |",
        "|---" * (5 + len(CODECS)) + "|",
    ]
    for (value, survivors, partitions, one_record, megabytes), cells in archives.items():
        batches = "1 record" if one_record else "full"
        each = " | ".join(cells.get(codec, "") for codec in CODECS)
        lines.append(f"| {value} | {survivors:.0%} | {partitions} | {batches} | {megabytes:,} | {each} |")
    lines += ["", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for row in rows:
        if (row["value_bytes"], row["survivors"], row["partitions"], row["one_record"]) == WHOLE:
            library = f"{row['library']:.2f}" if row["library"] else ""
            lines.append(
                f"| {row['codec']} | {row['log_bytes'] / 1e6:,.0f} | {row['kafka']:.2f} | {row['work']:.2f} "
                f"| {ratio(row):.2f} | {library} | {row['floor']:.2f} | {row['threads']:.2f} | {row['spark']:.2f} "
                f"| {row['peaks']['spark'] / 1e6:,.0f} |"
            )
    for cores, machine in sorted({(row["cores"], row["machine"]) for row in rows}):
        mine = [row for row in rows if (row["cores"], row["machine"]) == (cores, machine)]
        loads = [row["load"] for row in mine]
        lines += [
            "",
            f"{len(mine)} cells on {cores} cores ({machine}), {min(row['at'] for row in mine)[:10]}, commits "
            f"{', '.join(sorted({row['commit'] for row in mine}))}; medians of {min(row['repeat'] for row in mine)} or "
            f"more; load of the machine before a cell {min(loads):.1f} to {max(loads):.1f}.",
        ]
    return "\n".join([*lines, "", ""])


def ratio(row: Mapping[str, Any]) -> float:
    """Return how many times as long Kafka's cleaner takes as our tasks, on as many cores."""
    return float(row["kafka"] * min(row["cores"], row["partitions"]) / row["work"])


def plot(colours: Colours, rows: Sequence[Row]) -> str:
    """Draw a bar for each cell: how many times as fast as Kafka's cleaner."""
    d = Drawing(colours, "Compaction against Kafka's own cleaner: times as fast, work of one task, by cell")
    tall, left, most = 22.0, 300.0, max([ratio(row) for row in rows], default=1.0)
    scale = (WIDTH - left - 70) / most
    d.text(12, 22, "Times as fast as Kafka's cleaner on as many cores, work only", size=14)
    y = 40.0
    for row in rows:
        d.text(left - 8, y + 15, row["name"], size=12, anchor="end")
        d.box(left, y + 2, ratio(row) * scale, tall - 5, colours.good if ratio(row) >= 2 else colours.gone)
        d.text(left + ratio(row) * scale + 6, y + 15, f"{ratio(row):.1f}", size=12)
        y += tall
    d.line(left + scale, 36, left + scale, y + 2, dashed=True)
    d.text(left + scale, y + 16, "as fast as Kafka", size=11, faint=True)
    return d.svg(int(y) + 26)
