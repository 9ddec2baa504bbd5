"""`lookup` through its command line: offsets, times, sizing, a generation, a table of queries."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from chispa import assert_df_equality

from lastkey.jobs.command import cli
from lastkey.jobs.command.config import load_config
from lastkey.jobs.command.options import CompactOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.read_options import LookupOptions
from lastkey.jobs.compact import job as compact
from lastkey.jobs.errors import UsageError
from lastkey.jobs.lookup.job import LookupReport
from lastkey.jobs.lookup.partitions import archived_partitions
from lastkey.jobs.lookup.tables import answered, run_table
from lastkey.jobs.topics import EVERY_TOPIC, TopicFilter
from lastkey.logformat.batches.segment import open_segment
from lastkey.udfs.lookup.queries import Queries, lookup, lookup_table
from tests.builders.damage import START_MS, build
from tests.builders.logs import write_partition
from tests.builders.opened import open_partition
from tests.builders.trees import files_in
from tests.golden import golden

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
ARCHIVE = EXAMPLES / "archive"


def run(capsys, *arguments):
    """Run a lookup, and return (exit code, stdout, stderr)."""
    code = cli.main(["lookup", *map(str, arguments)])
    out = capsys.readouterr()
    return code, out.out, out.err


def answers(out):
    return [row for partition in json.loads(out)["partitions"] for row in partition["answers"]]


def records(folder):
    return pa.concat_tables(open_segment(log).to_arrow(["offset", "timestamp_ms"]) for log in files_in(folder))


def test_lookup_of_offsets_and_times_in_the_example(capsys):
    held = records(ARCHIVE / "orders-0")
    middle = held.column("timestamp_ms")[len(held) // 2].as_py()
    code, out, _ = run(
        capsys, ARCHIVE, "--partition", "orders-0", "--json", "--offset", 100, "--offset", 999_999,
        "--time", middle, "--time", "earliest", "--time", "latest", "--time", "max-timestamp",
    )  # fmt: skip
    assert code == 0
    by_offset, beyond, by_time, earliest, latest, largest = answers(out)
    with open_partition(ARCHIVE / "orders-0") as log:
        place = log.lookup_offset(100)
    assert (by_offset["position"], by_offset["batch_base_offset"]) == (place.position, place.base_offset)
    assert (beyond["status"], beyond["segment"]) == ("out_of_range", None)
    later = held.filter(pc.greater_equal(held.column("timestamp_ms"), middle))
    assert by_time["answer_offset"] == later.column("offset")[0].as_py()
    assert earliest["answer_offset"] == 0
    assert latest["answer_offset"] == held.column("offset")[-1].as_py() + 1
    assert largest["answer_timestamp"] == pc.max(held.column("timestamp_ms")).as_py()


def test_text_lists_partitions_of_matching_topics(capsys):
    code, out, _ = run(capsys, ARCHIVE, "--topics", "users*", "--time", "2026-11-20T00:00Z")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if line.startswith("users")] == ["users-0", "users-1"]
    assert "found" in out


def test_damaged_partition_has_exit_code_3_and_others_are_answered(tmp_path, capsys):
    write_partition(tmp_path / "good-0", "a=1 | b=2")
    folder = write_partition(tmp_path / "bad-0", "a=1 | b=2").folder
    log = folder / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[16] = 9
    log.write_bytes(data)
    code, out, _ = run(capsys, tmp_path, "--offset", 1, "--json")
    assert code == 3
    assert {(row["topic"], row["status"]) for row in answers(out)} == {("good", "found"), ("bad", "magic")}


def test_a_partition_in_two_places_is_a_problem(tmp_path, capsys):
    write_partition(tmp_path / "disk1" / "t-0", "a=1")
    write_partition(tmp_path / "disk2" / "t-0", "a=1 | b=2")
    write_partition(tmp_path / "disk2" / "u-0", "a=1")
    code, out, _ = run(capsys, tmp_path, "--offset", 0, "--json")
    assert code == 3
    assert {(row["topic"], row["status"]) for row in answers(out)} == {("t", "duplicate"), ("u", "found")}
    assert run(capsys, tmp_path, "--sizing")[0] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--partition", "order-0", "--offset", "1"], "did you mean orders-0"),
        (["--time", "latests"], "did you mean latest?"),
        (["--time", "noon"], "no such time: noon"),
        (["--time", "9223372036854775808"], "expected milliseconds up to 9223372036854775807"),
        (["--offset", "9223372036854775808"], "to 9223372036854775807, found 9223372036854775808"),
        (["--topics", "user", "--offset", "1"], "did you mean users?"),
        (["--topics", "none*", "--offset", "1"], "there are __transaction_state, clicks, orders, prices, users"),
        ([], "lookup needs one of"),
        (["--offset", "1", "--sizing"], "lookup needs one of"),
        (["--queries", "q.csv"], "need each other"),
        (["--at", "2026-11-21T02:30Z"], "--at needs --store"),
        (["--offset", "1", "--no-refresh"], "works only with --at"),
        (["--queries", "q.txt", "--output", "a.csv"], "ends in .parquet"),
        (["--queries", "missing.csv", "--output", "a.csv"], "a table of queries"),
    ],
)
def test_usage_errors_name_the_expected_value(capsys, arguments, message):
    code, _, err = run(capsys, ARCHIVE, *arguments)
    assert code == 2
    assert message in err


def test_sizing_counts_the_bytes_of_the_example(capsys):
    code, out, _ = run(capsys, ARCHIVE, "--sizing", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["total"]["log_bytes"] == sum(log.stat().st_size for log in files_in(ARCHIVE, "**/*.log"))
    assert report["total"]["interval_bytes"] == report["total"]["now_bytes"]
    assert report["estimates"]["offset_512_mib_segment"] == 1 << 20
    assert {t["topic"] for t in report["topics"]} >= {"users", "orders"}
    assert "each minute 57.7 MiB" in run(capsys, ARCHIVE, "--sizing")[1]


@pytest.fixture(scope="module")
def store(spark, tmp_path_factory):
    """Make a store with one generation of the example's topics."""
    folder = tmp_path_factory.mktemp("lookup") / "store"
    config = load_config(str(EXAMPLES / "topics.toml"))
    compact.run(CompactOptions(str(ARCHIVE), str(folder), config=config, topics=TopicFilter(("users",))), Silent())
    return folder


@pytest.mark.spark
@pytest.mark.slow
def test_lookup_in_a_store_equals_that_in_the_restored_generation(store, capsys, tmp_path):
    code, out, _ = run(
        capsys, "--store", store, "--partition", "users-1", "--json", "--offset", 5000, "--time", "latest"
    )
    assert code == 0
    answer, latest = answers(out)
    assert latest["answer_offset"] == records(ARCHIVE / "users-1").column("offset")[-1].as_py() + 1
    folder = next((store / "segments" / "users-1").iterdir())
    restored = tmp_path / "users-1"  # the whole generation in one folder, as restore makes it
    shutil.copytree(folder, restored)
    for log in files_in(ARCHIVE / "users-1"):
        if (restored / log.with_suffix(".index").name).exists() and not (restored / log.name).exists():
            shutil.copy2(log, restored / log.name)
    with open_partition(restored) as log:
        place = log.lookup_offset(5000)
    assert (answer["position"], answer["batch_last_offset"]) == (place.position, place.last_offset)
    assert run(capsys, "--store", store, "--generation", 9, "--offset", 1)[0] == 2


@pytest.mark.spark
@pytest.mark.slow
def test_queries_of_a_table_are_answered(spark, tmp_path, tmp_path_factory):
    case = golden(tmp_path_factory)["two-parts"]
    root = case.input(case.partitions[0]).parent
    plans = archived_partitions(str(root), EVERY_TOPIC, [])
    held = {plan.name: records(root / plan.name) for plan in plans}
    rows, expected = [], {}
    for name, table in held.items():
        topic, _, partition = name.rpartition("-")
        offsets = table.column("offset").to_pylist()
        with open_partition(root / name) as log:
            for offset in [*offsets[::7], offsets[-1] + 1, offsets[-1] + 2]:
                expected[len(rows)] = log.lookup_offsets([offset])[0]["position"].item()
                rows.append((len(rows), topic, int(partition), offset, None))
            for ms in table.column("timestamp_ms").to_pylist()[::11]:
                expected[len(rows)] = log.offsets_for_times([ms])[0]["position"].item()
                rows.append((len(rows), topic, int(partition), None, ms))
    rows += [
        (len(rows), "nope", 1, 5, None),
        (len(rows) + 1, None, 1, 5, None),
        (len(rows) + 2, "two-parts", 0, None, None),
    ]
    table = pa.table(
        dict(zip(("id", "topic", "partition", "offset", "timestamp"), map(list, zip(*rows, strict=True)), strict=True))
    )
    answered_rows = answered(spark.createDataFrame(table), plans).select("id", "position", "status")
    assert answered_rows.count() == len(rows)
    positions = [(i, position if position >= 0 else None) for i, position in expected.items()]
    assert_df_equality(
        answered_rows.where(f"id < {len(positions)}").select("id", "position"),
        spark.createDataFrame(positions, "id bigint, position bigint"), ignore_row_order=True,
    )  # fmt: skip
    statuses = [(len(rows) - 3, "no_partition"), (len(rows) - 2, "no_partition"), (len(rows) - 1, "no_query")]
    assert_df_equality(
        answered_rows.where(f"id >= {len(positions)}").select("id", "status"),
        spark.createDataFrame(statuses, "id bigint, status string"), ignore_row_order=True,
    )  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["parquet", "csv", "json"])
@pytest.mark.slow
def test_queries_of_files_are_answered(spark, tmp_path, capsys, kind):
    source, target = tmp_path / f"q.{kind}", tmp_path / f"a.{kind}"
    rows = pa.table(
        {"topic": ["users", "users"], "partition": [0, 1], "timestamp": [1_795_227_700_000, 1_795_228_000_000]}
    )
    if kind == "parquet":
        as_time = rows.column("timestamp").cast(pa.timestamp("ms", "UTC"))
        pq.write_table(rows.set_column(2, "timestamp", as_time), source)
    else:
        frame = rows.to_pandas()
        source.write_text(frame.to_csv(index=False) if kind == "csv" else frame.to_json(orient="records", lines=True))
    code, out, _ = run(capsys, ARCHIVE, "--queries", source, "--output", target, "--json")
    assert (code, json.loads(out)["answers"]) == (0, {"found": 2})
    read = spark.read.option("header", "true").option("inferSchema", "true").format(kind).load(str(target))
    expected = []
    for partition, ms in ((0, 1_795_227_700_000), (1, 1_795_228_000_000)):
        with open_partition(ARCHIVE / f"users-{partition}") as log:
            expected.append((partition, log.offsets_for_times([ms])[0]["offset"].item()))
    assert_df_equality(
        read.selectExpr("int(partition)", "bigint(answer_offset)"),
        spark.createDataFrame(expected, "partition int, answer_offset bigint"), ignore_row_order=True,
    )  # fmt: skip
    code, _, err = run(capsys, ARCHIVE, "--queries", source, "--output", target)
    assert (code, "found something" in err) == (2, True)


def test_output_in_a_log_that_is_read_is_refused(tmp_path):
    """The archive of an older generation may be another one than that of the current generations."""
    archive = Path(shutil.copytree(ARCHIVE, tmp_path / "older"))
    (tmp_path / "q.csv").write_text("topic,partition,offset\nusers,0,1\n")
    partitions = archived_partitions(str(archive), EVERY_TOPIC, [])
    options = LookupOptions(store=str(tmp_path), queries=str(tmp_path / "q.csv"), output=str(archive / "new" / "a.csv"))
    with pytest.raises(UsageError, match="--output"):
        run_table(options, partitions, LookupReport("", ""), Silent())


def test_missing_epoch_checkpoint_of_a_generation_is_noted(store, capsys, tmp_path):
    copy = Path(shutil.copytree(store, tmp_path / "copy"))
    for file in copy.rglob("leader-epoch-checkpoint"):
        file.unlink()
    code, out, _ = run(capsys, "--store", copy, "--partition", "users-1", "--json", "--time", "latest")
    assert code == 0
    assert any(note.endswith("leader epochs unknown") for note in json.loads(out)["notes"])


# -- a segment that is missing


@pytest.fixture
def holed(tmp_path):
    """48 offsets in four segments, without the second one: 12 to 23."""
    part = build(tmp_path / "archive")
    for path in files_in(part.folder, f"{12:020d}.*"):
        path.unlink()
    return part


@pytest.mark.parametrize(
    ("asked", "passes"),
    [
        (("--offset", 13), True), (("--offset", 11), False), (("--offset", 24), False), (("--offset", 48), False),
        (("--offset", 99), False), (("--time", START_MS + 3), False), (("--time", START_MS + 13), True),
        (("--time", START_MS + 30), True), (("--time", START_MS + 99), True), (("--time", "earliest"), False),
        (("--time", "latest"), False), (("--time", "max-timestamp"), True),
    ],
)  # fmt: skip
def test_gap_below_the_answer_is_a_problem(holed, capsys, asked, passes):
    """The missing segment may have held another answer."""
    code, out, _ = run(capsys, holed.root, *asked, "--json")
    [answer] = answers(out)
    assert (code, answer["status"] == "gap") == ((3, True) if passes else (0, False))
    assert (f"a segment that begins at offset 12, where {holed.log(0)} ends" in out) == passes
    code, out, _ = run(capsys, holed.root, *asked, "--json", "--set", "gaps=accept")
    assert code == 0 and answers(out)[0]["status"] != "gap"


def test_gap_at_the_start_or_end_of_the_log_is_a_problem(tmp_path, capsys):
    part = build(tmp_path / "archive")
    (part.folder / f"{60:020d}.index").write_bytes(b"")
    assert run(capsys, part.root, "--time", "latest")[0] == 3
    assert run(capsys, part.root, "--offset", 47)[0] == 0
    assert run(capsys, part.root, "--offset", 50)[0] == 3
    for path in files_in(part.folder, f"{0:020d}.*"):
        path.unlink()
    assert run(capsys, part.root, "--time", "earliest")[0] == 3
    assert run(capsys, part.root, "--offset", 3)[0] == 3
    assert run(capsys, part.root, "--offset", 12)[0] == 0


def test_gap_above_the_readable_end_is_ignored(holed):
    """A high watermark, or an open transaction, ends the answers in front of the hole."""
    [plan] = archived_partitions(str(holed.root), EVERY_TOPIC, [])
    late = Queries(np.array([START_MS + 99]), np.array([True]))
    assert lookup(plan, late).problem.kind == "gap"
    assert lookup(replace(plan, high_watermark=12), late).problem is None
    assert lookup(replace(plan, high_watermark=13), late).problem.kind == "gap"


def test_answers_to_a_table_of_queries_have_the_gap(holed):
    plans = {("t", 0): archived_partitions(str(holed.root), EVERY_TOPIC, [])[0]}
    rows = pa.record_batch({"topic": ["t"] * 2, "partition": [0] * 2, "offset": [11, 24]})
    passing = pa.record_batch({"topic": ["t"] * 2, "partition": [0] * 2, "offset": [11, 13]})
    status = [batch.column("status").to_pylist() for batch in lookup_table(plans, iter([rows, passing]))]
    assert status == [["found", "found"], ["gap", "gap"]]
