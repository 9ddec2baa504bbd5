"""The script that makes golden.tar.xz: `python -m tests.golden.make_golden`, about three minutes.

Real brokers write, the real 4.3.0 broker cleans (expected1). The clock of that pass follows from its delete horizons,
or else from the cleaner's log. At that clock the in-process cleaner must give the same bytes, otherwise nothing is
written; it then writes expected2 and expected3. Contents follow from the seeds; the clocks, and where some batches end,
do not.
"""

from __future__ import annotations

import datetime
import filecmp
import hashlib
import json
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.golden import ARCHIVE, DUMPED, PASSES, spec_lines
from tests.kafka_lab import Broker, CleanSpec, OldBroker, clean, digest, dump, dump_log_segments, make_logs
from tests.kafka_lab.jars import NEW, OLD
from tests.kafka_lab.waiting import wait_until

RETENTION_MS = 86_400_000
GAP_MS = RETENTION_MS + 3_600_000  # between passes
INDEXED = re.compile(r"\d{20}\.(log|index|timeindex|txnindex)")
SETTINGS = {"delete.retention.ms": RETENTION_MS, "index.interval.bytes": 4096, "segment.index.bytes": 10_485_760,
            "max.message.bytes": 1_048_588, "producer.id.expiration.ms": 86_400_000,
            "min.compaction.lag.ms": 0}  # fmt: skip
CLEANING = {"log.cleaner.enable": "true", "log.cleaner.backoff.ms": 100, "log.cleaner.min.cleanable.ratio": 0,
            "log.cleaner.delete.retention.ms": RETENTION_MS}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A partition of a case in the making."""

    case: str
    partition: str
    written_by: str
    spec: tuple[str, ...]
    source: Path  # data folder of the broker before cleaning
    cleaned: Path  # and after
    cleaner_log: str
    first_dirty_offset: int

    @property
    def segment_bytes(self) -> int:
        return int(re.search(r" segment=(\d+)", self.spec[0])[1])


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="golden-") as name:
        work = Path(name)
        jobs = broker_runs(work)
        out = work / "golden"
        metas: dict[str, dict[str, Any]] = {}
        for job in jobs:
            shutil.copytree(job.source / job.partition, out / job.case / "input" / job.partition)
            shutil.copytree(job.cleaned / job.partition, out / job.case / "expected1" / job.partition)
            meta = metas.setdefault(job.case, case_meta(job))
            meta["partitions"][job.partition] = {
                "now_ms": [clock(job, out) + k * GAP_MS for k in range(len(PASSES))],
                "first_dirty_offset": [job.first_dirty_offset, 0, 0],
            }
        for number in PASSES:
            in_process(jobs, metas, out, number, work)
        describe(jobs, metas, out)
        for case in DUMPED:
            dump_texts(out / case)
        pack(out, ARCHIVE)
    print(f"{len(metas)} cases, {len(jobs)} partitions, {ARCHIVE.stat().st_size:,} bytes")


def broker_runs(work: Path) -> list[Job]:
    """Write and clean with real brokers: the first round of all topics, then the second of those in more.spec."""
    source, old = write(work)
    put_under(old, source)
    topics = {line["topic"] for name in ("new", "old") for line in spec_lines(name)}
    first = broker_clean(source, work / "cleaned", partitions(source.data, topics))
    more = {line["topic"] for line in spec_lines("more")}
    appended = Broker(copied(first, work / "appended"))
    with appended:
        make_logs(appended.bootstrap, texts("more"))
    second = broker_clean(appended, work / "cleaned-again", partitions(appended.data, more))
    checkpoint = cleaner_checkpoint(first.data)
    jobs = [job(name, False, source, first, 0) for name in sorted(partitions(source.data, topics))]
    return jobs + [
        job(name, True, appended, second, checkpoint[name]) for name in sorted(partitions(appended.data, more))
    ]


def write(work: Path) -> tuple[Broker, OldBroker]:
    """Write the inputs: the new broker also makes the old topics, empty."""
    empty = [f"topic={line['topic']} records=0 roll=false segment={line['segment']}" for line in spec_lines("old")]
    with Broker(work / "new") as new:
        make_logs(new.bootstrap, texts("new") + empty)
    with OldBroker(work / "old") as old:
        make_logs(old.bootstrap, texts("old"))
    return new, old


def put_under(old: OldBroker, new: Broker) -> None:
    """Move the old broker's files into the new one's empty partitions."""
    for partition in partitions(old.data, {line["topic"] for line in spec_lines("old")}):
        target = new.data / partition
        for path in target.iterdir():
            if path.name != "partition.metadata":
                path.unlink()
        for path in (old.data / partition).iterdir():
            if path.name != "partition.metadata":
                shutil.copy2(path, target)
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        (new.data / name).unlink()


def copied(broker: Broker, target: Path) -> Path:
    """Copy a stopped broker, with its file times; return the target."""
    for name in ("data", "meta"):
        shutil.copytree(broker.directory / name, target / name)
    return target


def broker_clean(source: Broker, target: Path, wanted: set[str]) -> Broker:
    """Let the broker's cleaner run over a copy until it has cleaned all of `wanted` and written its checkpoint."""
    broker = Broker(copied(source, target), CLEANING)
    with broker:
        wait_until(lambda: wanted <= cleaned_now(broker), f"the cleaner to clean {sorted(wanted)}", seconds=120)
    for path in broker.data.rglob("*.deleted"):
        path.unlink()
    return broker


def cleaned_now(broker: Broker) -> set[str]:
    """Return the partitions that the cleaner reports as done, and whose end its checkpoint holds."""
    text = broker.cleaner_log.read_text()
    if "Unexpected exception" in text or "uncleanable" in text:
        raise RuntimeError(f"the cleaner failed:\n{text[-3000:]}")
    checkpoint = cleaner_checkpoint(broker.data)
    done = re.findall(r"cleaned log (\S+) \(dirty section = \[\d+, (\d+)\]\)", text)
    return {partition for partition, end in done if checkpoint.get(partition) == int(end)}


def cleaner_checkpoint(data: Path) -> dict[str, int]:
    path = data / "cleaner-offset-checkpoint"
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    return {f"{topic}-{number}": int(offset) for topic, number, offset in map(str.split, lines)}


def partitions(data: Path, topics: set[str]) -> set[str]:
    return {path.name for path in data.iterdir() if path.is_dir() and path.name.rpartition("-")[0] in topics}


def texts(name: str) -> list[str]:
    return [" ".join(f"{option}={value}" for option, value in line.items()) for line in spec_lines(name)]


def job(partition: str, is_more: bool, source: Broker, cleaned: Broker, first_dirty_offset: int) -> Job:
    topic = partition.rpartition("-")[0]
    old = topic in {line["topic"] for line in spec_lines("old")}
    names = ["old" if old else "new", *(["more"] if is_more else [])]
    spec = tuple(text for name in names for text in texts(name) if text.startswith(f"topic={topic} "))
    case = f"{topic}-more" if is_more else topic
    log = cleaned.cleaner_log.read_text()
    return Job(case, partition, OLD if old else NEW, spec, source.data, cleaned.data, log, first_dirty_offset)


def case_meta(job: Job) -> dict[str, Any]:
    settings = {"segment.bytes": job.segment_bytes, **SETTINGS}
    return {
        "name": job.case,
        "written_by": job.written_by,
        "cleaned_by": NEW,
        "spec": job.spec,
        "settings": settings,
        "partitions": {},
    }


def clock(job: Job, out: Path) -> int:
    """Return when the broker cleaned (ms): by the horizons that it set, else by its log, which is a little late."""
    before, after = (horizons(out / job.case / kind / job.partition) for kind in ("input", "expected1"))
    if new := after - before:
        [horizon] = new
        return horizon - RETENTION_MS
    pattern = rf"\[(\S+ \S+),(\d+)\] INFO .*Beginning cleaning of log {re.escape(job.partition)}\b"
    [(second, millis)] = re.findall(pattern, job.cleaner_log)
    began = datetime.datetime.fromisoformat(second).replace(tzinfo=datetime.UTC)
    return int(began.timestamp()) * 1000 + int(millis)


def horizons(folder: Path) -> set[int]:
    [lines] = dump([folder], "B").values()
    return {int(line.split("\t")[15]) for line in lines} - {-1}


def in_process(jobs: Iterable[Job], metas: dict[str, dict[str, Any]], out: Path, number: int, work: Path) -> None:
    """Run pass `number` of the in-process cleaner. Pass 1 runs aside, and has to agree with the broker's."""
    specs, folders = [], {}
    for job in jobs:
        meta = metas[job.case]["partitions"][job.partition]
        before = out / job.case / ("input" if number == 1 else f"expected{number - 1}") / job.partition
        folder = (work / "pass1" if number == 1 else out) / job.case / f"expected{number}" / job.partition
        shutil.copytree(before, folder)
        folders[folder] = job
        specs.append(
            CleanSpec(folder, meta["now_ms"][number - 1], job.segment_bytes, meta["first_dirty_offset"][number - 1])
        )
    for done in clean(specs):
        job = folders[done.directory]
        figures = {k: v for k, v in asdict(done).items() if k not in ("directory", "seconds")}
        metas[job.case]["partitions"][job.partition].setdefault("rounds", {}).setdefault(f"pass{number}", []).append(
            figures
        )
    if number == 1:
        wrong = [
            d
            for folder, job in folders.items()
            for d in differences(folder, out / job.case / "expected1" / job.partition)
        ]
        if wrong:
            raise RuntimeError(f"the in-process cleaner and the broker's disagree: {wrong}")


def differences(one: Path, other: Path) -> list[str]:
    names = [{path.name for path in folder.iterdir() if INDEXED.fullmatch(path.name)} for folder in (one, other)]
    return [f"{one.name}/{name}" for name in sorted(names[0] | names[1])
            if name not in names[0] & names[1] or not filecmp.cmp(one / name, other / name, shallow=False)]  # fmt: skip


def describe(jobs: Iterable[Job], metas: dict[str, dict[str, Any]], out: Path) -> None:
    """Write digests and checksums of every folder into meta.json."""
    for job in jobs:
        for kind in ("input", *(f"expected{number}" for number in PASSES)):
            folder = out / job.case / kind / job.partition
            [figures] = digest([folder]).values()
            sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}
            metas[job.case]["partitions"][job.partition][kind] = {**asdict(figures), "files": sums}
    for case, meta in metas.items():
        (out / case / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")


def dump_texts(case: Path) -> None:
    """Keep kafka-dump-log's text of the first segments of input and expected1, their snapshots and .txnindex files."""
    for folder in (path for kind in ("input", "expected1") for path in sorted((case / kind).iterdir())):
        first = min(folder.glob("*.log")).stem
        for path in sorted(folder.iterdir()):
            if path.stem != first and path.suffix not in (".snapshot", ".txnindex"):
                continue
            text = dump_log_segments("--deep-iteration", "--print-data-log", "--files", path)
            target = case / "dump" / path.relative_to(case).with_name(path.name + ".txt")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text.replace(f"{case}/", ""))


def pack(out: Path, into: Path) -> None:
    """Pack everything into an archive, in order, with file times and without owners."""
    with tarfile.open(into, "w:xz", format=tarfile.PAX_FORMAT, preset=9) as archive:
        archive.add(out, arcname=".", filter=anonymous)


def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
