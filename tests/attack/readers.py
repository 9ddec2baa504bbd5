"""Every job that reads an archive, as a function: it takes a folder, and returns the job's problems and output.

They are whole jobs if these need neither Spark nor a store, otherwise the function that Spark would run. Reports are
also formatted as text and as JSON: they contain names and numbers from damaged files.
"""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable

from lastkey.jobs.archive.listing import ArchivedPartition, list_archive
from lastkey.jobs.command.new_log_directory import CreatedFiles
from lastkey.jobs.command.options import ConvertOptions, ReindexOptions, VerifyOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.read_options import InspectOptions, LookupOptions, ReportOptions
from lastkey.jobs.compact.plan_inputs import input_from_archive, run_context, whole_plan
from lastkey.jobs.convert.job import run as convert
from lastkey.jobs.data_source.source import KafkaLog, select_columns
from lastkey.jobs.data_source.stream import StreamReader
from lastkey.jobs.errors import JobError
from lastkey.jobs.inspect_log import run as inspect
from lastkey.jobs.lookup.job import run as lookup
from lastkey.jobs.reindex.job import run as reindex
from lastkey.jobs.report.job import profile_archive
from lastkey.jobs.report.job import run as write_report
from lastkey.jobs.restore.copy_files import copy_log, copy_small
from lastkey.jobs.verify.job import run as verify
from lastkey.logformat.errors import KINDS, NO_POSITION, LogFormatError
from lastkey.udfs.compact.compact_partition import compact_partition
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.lookup.minutes import TimedSegment, time_index_rows
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import open_root
from tests.attack.forked import Failed
from tests.attack.specimens import CONFIG, crc32c
from tests.builders.damage import BOMB_LIMIT, NOW_MS, START_MS
from tests.builders.folders import Outcome
from tests.builders.pages import needs_nothing_else
from tests.builders.sources import parse_options, read
from tests.builders.splits import compact_in_blocks
from tests.builders.trees import read_tree
from tests.reference.any_magic import decode_any

SECRET = (11, 12)


@dataclass
class Seen:
    """Problems that a job found in an archive, and its output."""

    problems: list[Problem] = field(default_factory=list)
    output: Any = None  # comparable: equal for equal archives
    plan: PartitionPlan | None = None  # plan of a compaction
    outcome: Outcome | None = None


def _listed(root: Path) -> ArchivedPartition:
    return list_archive(open_root(str(root)), lambda _: True).partitions["t", 0]


def _planned(archived: ArchivedPartition, root: Path, store: Path) -> PartitionPlan | Problem:
    """Return a partition's plan, as the job makes it, or the problem that prevents one."""
    problem = archived.problem or archived.high_watermark_problem or archived.unread
    if problem is not None:
        return problem
    folder = f"segments/{archived.topic}-0/1-run"
    run = replace(run_context(CONFIG, str(store), NOW_MS, folder=folder), secret=SECRET)
    return whole_plan(run, input_from_archive(archived), CONFIG.topic_settings(archived.topic))


def compact(root: Path, work: Path) -> Seen:
    """Compact in one task."""
    return _compacted(root, work, compact_partition)


def compact_large(root: Path, work: Path) -> Seen:
    """Compact in several tasks, with a split every few bytes."""
    return _compacted(root, work, lambda plan: compact_in_blocks(plan).result)


def _compacted(root: Path, work: Path, run: Callable[[PartitionPlan], Any]) -> Seen:
    store = work / "store"
    shutil.rmtree(store, ignore_errors=True)
    return compact_listed(_listed(root), root, store, run)


def compact_listed(
    archived: ArchivedPartition, root: Path, store: Path, run: Callable[[PartitionPlan], Any] = compact_partition
) -> Seen:
    """Compact one partition of an archive, into a store of its own."""
    plan = _planned(archived, root, store)
    if isinstance(plan, Problem):
        return Seen([plan])
    result = run(plan)
    if isinstance(result, Problem):
        return Seen([result], plan=plan)
    if result.problem is not None:
        left = [p for p in store.rglob("*") if p.is_file()] if store.exists() else []
        assert not left, f"uncleanable, and left {left}"
        return Seen([result.problem], plan=plan)
    return Seen([], result.status, plan, Outcome(result, plan))


def verify_archive(root: Path, work: Path) -> Seen:
    report = verify(VerifyOptions(archive=str(root), config=CONFIG), Silent())
    shown = _written(report)
    return Seen(report.problems, shown)


def reindex_check(root: Path, work: Path) -> Seen:
    return _reindexed(root, ReindexOptions(str(root), check=True, config=CONFIG))


def reindex_output(root: Path, work: Path) -> Seen:
    shutil.rmtree(work / "indexes", ignore_errors=True)
    return _reindexed(root, ReindexOptions(str(root), output=str(work / "indexes"), config=CONFIG))


def _reindexed(root: Path, options: ReindexOptions) -> Seen:
    report = reindex(options, Silent())
    shown = _written(report)
    problems = [
        Problem(f.reason, f.log if f.status == "impossible" else f.path, max(f.position, 0), f.expected, f.found)
        for f in report.files
        if f.status == "impossible" or (f.status != "same" and f.reason)
    ]
    return Seen(problems, shown)


def convert_and_back(root: Path, work: Path) -> Seen:
    """Convert to magic 3 and back to magic 2. Raises Failed if a readable log differs afterwards. One that has magic 3
    is only copied on the way there, so what is wrong in it shows on the way back.
    """
    for name in ("there", "back"):
        shutil.rmtree(work / name, ignore_errors=True)
    there = convert(ConvertOptions(str(root), output=str(work / "there"), to="v3", config=CONFIG), Silent())
    back = convert(ConvertOptions(str(work / "there"), output=str(work / "back"), to="v2", config=CONFIG), Silent())
    new = [p for p in back.problems if (work / "there" / p.path).read_bytes() != (root / p.path).read_bytes()]
    if new and not there.problems:
        raise Failed(f"on the way back: {new[:3]}")
    rows = []
    for log in sorted((work / "back").rglob("*.log")):
        before, after = (decoded_log(path) for path in (root / log.relative_to(work / "back"), log))
        if after != before:
            raise Failed(f"{log.name}: {after[:3]} came back, of {before[:3]}")
        rows += after
    return Seen([*there.problems, *back.problems], rows)


def decoded_log(path: Path) -> list[Any]:
    """Return all fields and records of a log, by a slow reader where it can read them; else the bytes."""
    out: list[Any] = []
    data, at = path.read_bytes(), 0
    while at + 12 <= len(data):
        part = data[at : at + 12 + max(int.from_bytes(data[at + 8 : at + 12], "big", signed=True), 0)]
        try:
            out.append(decode_any(part)[0])
        except Exception:  # the slow readers check by assertions, and their codecs raise anything
            out.append(part[:8] + part[12:])
        at += len(part)
    return [*out, data[at:]]


def look_up(root: Path, work: Path) -> Seen:
    """Look up offsets and times all over the log, and the cost of its indexes."""
    offsets = (*range(0, 26, 3), 25, 26, 2**63 - 1)
    times = ("earliest", "latest", "max-timestamp", "1970-01-01T00:00:01Z", str(START_MS + 12), "9999-01-01T00:00:00Z")
    seen = Seen()
    shown = []
    for isolation in ("read_uncommitted", "read_committed"):
        report: Any = lookup(
            LookupOptions(archive=str(root), config=CONFIG, offsets=offsets, times=times, isolation=isolation), Silent()
        )
        shown.append(_written(report))
        seen.problems += [
            partition.lookup.problem for partition in report.partitions if partition.lookup.problem is not None
        ]
    sizing: Any = lookup(LookupOptions(archive=str(root), config=CONFIG, sizing=True), Silent())
    shown.append(_written(sizing))
    seen.problems += sizing.problems
    return replace(seen, output=shown)


def dump(root: Path, work: Path) -> Seen:
    """Print every file with its records, as text and as JSON, and search for a key and a time."""
    seen, shown = Seen(), []
    everything = InspectOptions((str(root),), config=CONFIG, parts="data")
    for options in (
        everything, replace(everything, as_json=True), replace(everything, key=b"a"),
        replace(everything, times=f"{START_MS + 3}..{START_MS + 20}", offsets="2..22"),
        InspectOptions((str(root),), config=CONFIG, parts="mismatches"),
    ):  # fmt: skip
        out = io.BytesIO()
        report = inspect(options, Silent(), out.write)
        text = "".join(report.messages)
        shown.append((out.getvalue().replace(str(root).encode(), b""), text.replace(str(root), "")))
        if options.as_json:
            for line in out.getvalue().splitlines():
                json.loads(line)
        problems = [line for line in text.split("\n") if line.startswith("problem: ")]
        assert len(problems) == report.n_problems, text
        seen.problems += map(_parse_problem, problems)
    return replace(seen, output=shown)


_SAID = re.compile(
    r"problem: (.*) at byte (\d+)(?: \(batch at offset -?\d+\))?: ([a-z_]+): expected (.*), found (.*)", re.DOTALL
)


def _parse_problem(line: str) -> Problem:
    """Return the problem that a line states."""
    match = _SAID.fullmatch(line)
    assert match is not None and match[3] in KINDS, line
    return Problem(match[3], match[1], int(match[2]), match[4], match[5])


def report_profile(root: Path, work: Path) -> Seen:
    options = ReportOptions(str(root), str(work / "page.html"), now_ms=NOW_MS, config=CONFIG)
    report = profile_archive(options, Silent())
    shown = _written(report)
    return Seen(list(report.problems), shown)


def report_page(root: Path, work: Path) -> Seen:
    """Run the whole report job: figures, and a page on which nothing from the archive is markup."""
    page = work / "page.html"
    page.unlink(missing_ok=True)
    report = write_report(ReportOptions(str(root), str(page), now_ms=NOW_MS, config=CONFIG), Silent())
    shown = _written(report)
    needs_nothing_else(page.read_text(encoding="utf-8"))
    return Seen(list(report.problems), shown)


def time_index(root: Path, work: Path) -> Seen:
    """Make rows of the table `time_index`, with the problems that end them early."""
    archived = _listed(root)
    segments = [TimedSegment("t", 0, segment, BOMB_LIMIT) for segment in archived.segments]
    rows = _rows(time_index_rows(segments))
    problems = [row.pop("problem") for row in rows]
    return Seen([_parse_problem(f"problem: {text}") for text in problems if text is not None], rows)


def data_source(root: Path, work: Path, gaps: str = "fail") -> Seen:
    """Read all three sources, committed and uncommitted; an error that stops one is its problem."""
    seen = Seen(output={})
    for name, options in SOURCES.items():
        try:
            table = read(options[0], root, **options[1], gaps=gaps)
        except (LogFormatError, JobError) as error:
            seen.problems.append(unreadable_problem(error))
            continue
        seen.output[name] = _rows(table)
    return seen


SOURCES: dict[str, tuple[str, dict[str, str]]] = {
    "records": ("kafka_log", {"includeHeaders": "true"}),
    "committed": ("kafka_log", {"isolationLevel": "read_committed"}),
    "batches": ("kafka_log_batches", {}),
    "index": ("kafka_log_index", {}),
}


def data_source_quarantine(root: Path, work: Path) -> Seen:
    """Read the sources with bad records as rows: readable records come beside unreadable ones."""
    seen = Seen(output={})
    for name, options in SOURCES.items():
        try:
            table = read(options[0], root, **options[1], badRecords="quarantine")
        except (LogFormatError, JobError) as error:
            seen.problems.append(unreadable_problem(error))
            continue
        rows = _rows(table)
        seen.problems += _taken_out(rows)
        seen.output[name] = rows
    return seen


STREAMED = {"startingOffsets": "earliest", "includeHeaders": "true"}


def stream(root: Path, work: Path) -> Seen:
    """Stream the whole log from its first offset on; an error that stops the stream is its problem."""
    return _streamed(root, "fail")


def stream_quarantine(root: Path, work: Path) -> Seen:
    """Stream the log with bad records as rows. The log ends where damage hides the batches behind it
    (udfs.data_source.log_end) without a problem row, so name the problem that a failing stream names.
    """
    seen = _streamed(root, "quarantine")
    return seen if seen.problems else replace(seen, problems=_streamed(root, "fail").problems)


def _streamed(root: Path, bad_records: str) -> Seen:
    try:
        rows = rows_streamed(root, bad_records)
    except (LogFormatError, JobError) as error:
        return Seen([unreadable_problem(error)], {})
    return Seen(_taken_out(rows), {"records": rows})


def rows_streamed(root: Path, bad_records: str = "quarantine") -> list[dict[str, Any]]:
    """Return rows of micro-batches until no more come, problems among them; without Spark."""
    options = parse_options("kafka_log", root, **STREAMED, badRecords=bad_records)
    schema = select_columns(KafkaLog.columns, options)
    reader, batches = StreamReader(options, schema), []
    start = reader.initialOffset()
    while (end := reader.latestOffset(start, ReadAllAvailable())) != start:
        batches += [batch for task in reader.partitions(start, end) for batch in reader.read(task)]
        start = end
    return _rows(pa.Table.from_batches(batches, schema=schema))


def _taken_out(rows: list[dict[str, Any]]) -> list[Problem]:
    """Remove the problems from rows and return them."""
    problems = [row.pop("problem", None) for row in rows]
    return [Problem(p["kind"], p["path"], p["position"], p["expected"], p["found"]) for p in problems if p is not None]


_MANIFESTS: dict[Path, dict[str, tuple[int, int]]] = {}  # archive -> path of each log: bytes, CRC-32C


def restore_copies(root: Path, work: Path) -> Seen:
    """Copy the files of a manifest as `restore` does; the first call, on the undamaged archive, makes the manifest."""
    logs = sorted(path.relative_to(root).as_posix() for path in root.glob("t-0/*.log"))
    manifest = _MANIFESTS.setdefault(
        root, {path: (len(data := (root / path).read_bytes()), crc32c(data)) for path in logs}
    )
    target = work / "restored"
    shutil.rmtree(target, ignore_errors=True)
    source, made = open_root(str(root)), CreatedFiles(open_root(str(target)))
    output = made.folder("t-0")
    try:
        for path, (size, checksum) in manifest.items():
            copy_log(source, path, output, made.file(path), size, checksum)
        for side in sorted(path for path in root.glob("t-0/*") if path.suffix != ".log"):
            path = side.relative_to(root).as_posix()
            copy_small(source, path, output, made.file(path))
    except JobError as error:
        assert not made.take_back(), "left behind"
        return Seen([unreadable_problem(error)])
    return Seen([], read_tree(target))


def _rows(table: Any) -> list[dict[str, Any]]:
    """Return rows, with times as microseconds, because Python's own times end with the year 9999."""
    for i, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(i, column.name, table.column(i).cast(pa.int64()))
    return table.drop_columns([name for name in ("path",) if name in table.column_names]).to_pylist()  # type: ignore[no-any-return]


def unreadable_problem(error: Exception) -> Problem:
    if isinstance(error, LogFormatError):
        return Problem.of(error)
    return Problem("unreadable", "the job's own error", 0, type(error).__name__, str(error))


def _written(report: Any) -> str:
    """Format a report as a user and as a program get it, without times."""
    answer = report.to_json()
    report.to_text()
    return json.dumps(without(answer, "seconds", "io"), default=str)


def without(problems: Any, *names: str) -> Any:
    """Return a report without the fields of these names, at any depth."""
    if isinstance(problems, dict):
        return {k: without(v, *names) for k, v in problems.items() if k not in names}
    return [without(problem, *names) for problem in problems] if isinstance(problems, list | tuple) else problems


def check_named(problems: Iterable[Problem]) -> None:
    """Check that each problem has one of the project's kinds, a place, and the bytes found there. One of a whole
    partition has no position.
    """
    for p in problems:
        assert p.kind not in ("defect", "memory"), f"{p.kind}: {p}"
        assert p.path, f"no path: {p!r}"
        assert p.position >= 0 or (p.position, p.path) == (NO_POSITION, "t-0"), f"no position: {p!r}"
        assert p.found, f"nothing found: {p!r}"


JOBS: dict[str, Callable[[Path, Path], Seen]] = {
    "compact": compact, "compact in several tasks": compact_large, "verify": verify_archive, "reindex": reindex_check,
    "reindex into a folder": reindex_output, "convert and back": convert_and_back,
    "lookup": look_up, "inspect": dump, "report": report_profile,
    "time index": time_index,
    "data source": data_source,
    "data source, bad records quarantined": data_source_quarantine,
    "data source as a stream": stream,
    "data source as a stream, bad records quarantined": stream_quarantine,
    "restore, copies": restore_copies,
}  # fmt: skip
