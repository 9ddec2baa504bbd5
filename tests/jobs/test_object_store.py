"""Archives in a bucket: the same answers as on a disk, through pyarrow's own S3 client and a server that speaks S3."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from click.testing import CliRunner
from pyarrow import fs as pafs

from lastkey import logformat
from lastkey.jobs.archive.listing import list_archive
from lastkey.jobs.command import cli
from lastkey.jobs.command.config import parse_config
from lastkey.jobs.command.options import ConvertOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.convert import job as convert
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.storage.locations import file_system
from lastkey.udfs.storage import open_root
from tests.builders.logs import write_partition
from tests.builders.opened import open_partition
from tests.builders.remote import batches, put_aiven, put_kafka, put_pinterest, segment
from tests.builders.s3_server import BUCKET, put, s3_server
from tests.builders.sources import list_tasks, read
from tests.builders.steps import at_step, interrupt
from tests.builders.trees import files_in, read_tree

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "archive"
# Clocks differ, and local files are read in part
VARIES = re.compile(r"^in all .*\n|seconds: .*|, read [\d.]+ \w+|^read .*|[\d,]+ MB/s.*", re.MULTILINE)
CLOCKS = ("seconds", "io", "bytes_read", "megabytes_per_second_per_core")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def bucket() -> Iterator[str]:
    """Serve the example archive as s3://logs/archive from a process that the tests start and stop."""
    with s3_server():
        put(EXAMPLE, f"{BUCKET}/archive")
        yield BUCKET


def run(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.lastkey, [*map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def objects_in(uri: str) -> dict[str, bytes]:
    filesystem, path = file_system(uri)
    infos = filesystem.get_file_info(pafs.FileSelector(path, recursive=True))
    objects = {}
    for info in infos:
        if info.type == pafs.FileType.File:
            with filesystem.open_input_file(info.path) as file:
                objects[info.path[len(path) + 1 :]] = file.read()
    return objects


def timeless(text: object) -> object:
    """Return JSON without times, and without the bytes read: of local files only headers are read."""
    if isinstance(text, dict):
        return {name: timeless(value) for name, value in text.items() if name not in CLOCKS}
    return [timeless(value) for value in text] if isinstance(text, list) else text


@pytest.mark.parametrize(
    "words",
    [
        "verify --json", "reindex --check --json", "reindex --check", "lookup --sizing --json",
        "lookup --time 2026-11-21T02:30Z --time latest", "inspect --print data", "inspect --print mismatches",
        "lookup --partition orders-0 --offset 0 --offset 4711 --offset 99999 --isolation read_committed --json",
        "inspect --key order-000835 --json", "inspect --time 2026-11-21T02:30Z.. --topics orders",
    ],
)  # fmt: skip
def test_jobs_report_the_same_for_a_bucket(words):
    job, *options = words.split()
    uri = f"{BUCKET}/archive"
    remote, local = (run(job, archive, *options) for archive in (uri, EXAMPLE))
    assert remote[0] == local[0] == 0
    assert len(local[1]) > 100
    texts, expected = remote[1].replace(uri, str(EXAMPLE)), local[1]
    if "--json" in options and job != "inspect":
        assert timeless(json.loads(texts)) == timeless(json.loads(expected))
    else:
        assert VARIES.sub("", texts) == VARIES.sub("", expected)
    assert remote[2].replace(uri, str(EXAMPLE)) == local[2]


@pytest.mark.parametrize("upload", [put_kafka, put_aiven, put_pinterest])
def test_tiered_storage_in_a_bucket_equals_that_on_a_disk(upload, tmp_path):
    for number in range(3):  # each segment begins inside of the one before
        upload(tmp_path / "remote", "t-0", number, segment(batches(number * 50, number * 50 + 80)))
    uri, settings = f"{BUCKET}/{upload.__name__}", ["--topics", "t", "--cleanup-policy", "compact", "--sealed"]
    put(tmp_path / "remote", uri)
    scheme = "tiered+" if upload is put_pinterest else ""  # else its folders are those of a log directory
    for name, archive in (("a", tmp_path / "remote"), ("b", uri)):
        store = ["--store", tmp_path / f"store-{name}"]
        code, output, _ = run(
            "compact", f"{scheme}{archive}", *store, *settings, "--engine", "threads", "--now", 1_800_000_000_000
        )
        assert code == 0
        assert re.search(r"\bt-0 +\w+ +180 +", output), output
        assert run("restore", *store, "--output", tmp_path / name)[0] == 0
    ours = read_tree(tmp_path / "a")
    assert len(ours) > 5
    assert read_tree(tmp_path / "b") == ours
    rows = read("kafka_log", f"{scheme}{uri}")
    assert rows["offset"].to_pylist() == list(range(180))
    assert rows.equals(read("kafka_log", f"{scheme}{tmp_path / 'remote'}"))


def test_indexes_are_rebuilt_into_the_bucket(tmp_path):
    shutil.copytree(EXAMPLE, tmp_path / "archive", ignore=shutil.ignore_patterns("*.index"))
    put(tmp_path / "archive", f"{BUCKET}/bare")
    assert run("reindex", f"{BUCKET}/bare", "--check")[0] == 3
    assert run("reindex", f"{BUCKET}/bare", "--output", f"{BUCKET}/rebuilt")[0] == 0
    assert run("reindex", EXAMPLE, "--output", tmp_path / "rebuilt")[0] == 0
    assert objects_in(f"{BUCKET}/rebuilt") == read_tree(tmp_path / "rebuilt")


def test_interrupted_conversion_into_a_bucket_is_continued(tmp_path):
    uri, config = f"{BUCKET}/v3", parse_config({"job": {"engine": "threads"}})
    options = ConvertOptions(f"{BUCKET}/archive", output=uri, to="v3", config=config)

    with pytest.raises(KeyboardInterrupt), at_step("partition converted", interrupt, 2):
        convert.run(options, Silent())
    listing = list_archive(open_root(uri), lambda _: True)
    assert len(listing.partitions) == 1
    assert sum("unfinished, as" in note for note in listing.notes) > 3
    report = convert.run(options, Silent())
    assert report.exit_code == 0
    assert all(p.kept == p.segments for p in report.partitions)
    convert.run(ConvertOptions(str(EXAMPLE), output=str(tmp_path / "v3"), to="v3", config=config), Silent())
    assert objects_in(uri) == read_tree(tmp_path / "v3")


def test_copies_in_a_bucket_are_merged_into_the_bucket(tmp_path):
    put(ROOT / "examples" / "replicas", f"{BUCKET}/replicas")
    options = ("--layout", "replicas", "--engine", "threads")
    done = [
        run("merge", source, *options, "--output", output)
        for source, output in (
            (f"{BUCKET}/replicas", f"{BUCKET}/merged"), (ROOT / "examples" / "replicas", tmp_path / "merged"),
        )
    ]  # fmt: skip
    assert [code for code, _, _ in done] == [0, 0], done
    assert objects_in(f"{BUCKET}/merged") == read_tree(tmp_path / "merged")
    one = ROOT / "examples" / "replicas" / "broker-1"
    mixed = run("merge", one, f"{BUCKET}/replicas/broker-2", *options[2:], "--output", tmp_path / "mixed")
    assert mixed[0] == 0, mixed  # the bucket has the records that broker 1 lacks


@pytest.mark.parametrize("part", [".", "..", ""])
def test_object_key_with_dots_or_an_empty_part_is_refused(tmp_path, part):
    """No partition is read from another folder, and none is written beside the output."""
    uri = f"{BUCKET}/dots{len(part)}"
    write_partition(tmp_path / "t-0", "a=1 || b=2")
    put(tmp_path, uri)
    key = f"dots{len(part)}/{part}/t-1/00000000000000000000.log"
    boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"]).put_object(Bucket="logs", Key=key, Body=b"")
    code, out, err = run("reindex", uri, "--output", tmp_path / "written" / "here")
    assert (code, err) == (3, "")
    assert re.search(rf"note: {uri}: unreadable: .*invalid path: .*dots{len(part)}/{re.escape(part)}/", out), out
    assert not any(path.is_file() for path in (tmp_path / "written").rglob("*"))


def test_report_of_a_bucket_equals_that_of_a_disk(tmp_path):
    options = ("--config", ROOT / "examples" / "topics.toml", "--now", 1795300000000)
    uri = f"{BUCKET}/archive"
    reports = [
        json.loads(run("report", archive, "--output", tmp_path / "page.html", "--json", *options)[1])["partitions"]
        for archive in (uri, EXAMPLE)
    ]
    assert timeless(reports[0]) == timeless(reports[1])


@pytest.mark.parametrize(
    "options",
    [
        {}, {"topics": "orders,users", "partitions": "0"}, {"startingTimestamp": "2026-11-21T02:30Z"},
        {"topics": "orders", "startingOffsets": '{"orders":{"0":5000}}', "endingOffsets": '{"orders":{"0":5100}}'},
        {"isolationLevel": "read_committed", "splitBytes": "50000"}, {"key": "order-000835", "topics": "orders"},
    ],
    ids=str,
)  # fmt: skip
def test_records_of_a_bucket_equal_those_of_a_disk(options):
    assert read("kafka_log", f"{BUCKET}/archive", **options).equals(read("kafka_log", EXAMPLE, **options))


@pytest.mark.parametrize("name", ["kafka_log_batches", "kafka_log_index"])
def test_batches_and_index_entries_of_a_bucket_equal_those_of_a_disk(name):
    tables, expected = read(name, f"{BUCKET}/archive"), read(name, EXAMPLE)
    assert tables.drop_columns("path").equals(expected.drop_columns("path"))
    assert set(tables["path"].to_pylist()) == {
        path.replace(str(EXAMPLE), f"{BUCKET}/archive") for path in expected["path"].to_pylist()
    }


def test_patterns_and_single_files_of_a_bucket_are_read():
    for pattern in ("*s-0", "[op]*-0/0*.log", "users-1/00000000000000000000.log"):
        local = read("kafka_log", f"{EXAMPLE}/{pattern}")
        assert local.num_rows
        assert read("kafka_log", f"{BUCKET}/archive/{pattern}").equals(local)


def test_segment_and_partition_of_a_bucket_are_read():
    path = "orders-0/00000000000000000000.log"
    segment = logformat.open_segment(f"{BUCKET}/archive/{path}")
    assert segment.to_arrow().equals(logformat.open_segment(EXAMPLE / path).to_arrow())
    archives = f"{BUCKET}/archive", EXAMPLE
    remote, local = (open_partition(f"{archive}/orders-0") for archive in archives)
    with remote, local:
        assert remote.lookup_offset(4711) == local.lookup_offset(4711)
        assert remote.offsets_for_times([1795228200000]) == local.offsets_for_times([1795228200000])


def test_a_missing_bucket_or_folder_is_an_error(tmp_path):
    for job, uri, message in (
        ("verify", f"{BUCKET}/nothing", "expected a folder with Kafka log directories, found none"),
        ("verify", "s3://nobody/archive", "there is no such bucket"),
        ("inspect", f"{BUCKET}/nothing", "expected a file or a folder, found nothing"),
    ):
        with pytest.raises(Exception, match=message):
            CliRunner().invoke(cli.lastkey, [job, uri], catch_exceptions=False, standalone_mode=False)
    write_partition(tmp_path / "t-0", "a=1 || b=2")
    put(tmp_path, f"{BUCKET}/shrinking")
    planned = list_tasks("kafka_log", f"{BUCKET}/shrinking")
    filesystem, path = file_system(f"{BUCKET}/shrinking/t-0/00000000000000000000.log")
    filesystem.delete_file(path)
    from lastkey.jobs.data_source.read import read_task
    from lastkey.jobs.data_source.source import select_columns
    from tests.builders.sources import BY_NAME, _Partition, parse_options

    options = parse_options("kafka_log", f"{BUCKET}/shrinking")
    schema = select_columns(BY_NAME["kafka_log"].columns, options)
    with pytest.raises(LogFormatError, match="expected a readable file"):
        [list(read_task(options, schema, _Partition(task))) for task in planned]


def test_s3a_uris_are_accepted(tmp_path):
    """Every job with a URI accepts it; the store and the reports contain s3://."""
    archive, store = "s3a://logs/archive", "s3a://logs/by-s3a"
    topic = ("--topics", "prices")
    settings = ("--config", "examples/topics.toml", "--now", "1795300000000", *topic)
    for words in (
        ("verify", archive, *topic),
        ("reindex", archive, "--output", "s3a://logs/by-s3a-rebuilt", *topic),
        ("lookup", archive, "--offset", "1", *topic),
        ("inspect", archive, "--output", "s3a://logs/by-s3a-dumped", *topic),
        ("report", archive, "--output", "s3a://logs/by-s3a.html", *topic),
        ("compact", archive, "--store", store, *settings),
        ("compact", f"{BUCKET}/archive", "--store", f"{BUCKET}/by-s3a", *settings),
        ("verify", "--store", store, "--archive", archive),
        ("restore", "--store", store, "--output", tmp_path / "restored", "--archive", archive),
        ("runs", "--store", store),
        ("vacuum", "--store", store, "--dry-run"),
    ):
        code, output, errors = run(*words)
        assert code == 0, (words, errors)
        assert "s3a://" not in output + errors
    tables, expected = (
        read("kafka_log", uri, topics="prices", columns="topic,partition,offset")
        for uri in (archive, f"{BUCKET}/archive")
    )
    assert tables == expected and tables.num_rows > 1000


def test_deletable_files_of_a_bucket_equal_those_of_a_disk(tmp_path):
    """The answer is that of a disk; what it names is deleted, and it is not missed."""
    shutil.copytree(EXAMPLE, tmp_path / "archive")
    put(EXAMPLE, f"{BUCKET}/needed")
    threads, outputs = ("--engine", "threads"), []
    for archive, store in ((tmp_path / "archive", tmp_path / "store"), (f"{BUCKET}/needed", f"{BUCKET}/store")):
        compact = ("compact", archive, "--store", store, "--config", "examples/topics.toml", *threads)
        assert run(*compact, "--now", "1795300000000", "--sealed")[0] == 0
        code, text, _ = run("archive-needed", archive, "--store", store, "--json", *threads)
        outputs.append(
            (code, text.replace(f"file://{archive}", "A").replace(str(archive), "A").replace(str(store), "S"))
        )
    answers = [{**json.loads(text), **dict.fromkeys(CLOCKS)} for _, text in outputs]
    assert outputs[0][0] == outputs[1][0] == 0 and answers[0] == answers[1]
    code, names, _ = run("archive-needed", archive, "--store", store, "--format", "paths", *threads)
    for name in names.splitlines():
        filesystem, path = file_system(name)
        filesystem.delete_file(path)
    assert len(names.splitlines()) > 10 and run(*compact, "--sealed", "--force")[0] == 0
    assert run("verify", "--store", store, *threads)[0] == 0


@pytest.mark.spark
def test_archive_in_a_bucket_is_compacted_into_a_store_on_a_disk(tmp_path):
    """By Spark's workers, which see the environment too; the same bytes as of the archive on a disk."""
    stores = []
    for archive, store in ((f"{BUCKET}/archive", tmp_path / "remote"), (EXAMPLE, tmp_path / "local")):
        words = ["compact", archive, "--store", store, "--config", "examples/topics.toml", "--now", "1795300000000"]
        command = [str(ROOT / "spark-submit.sh"), *map(str, words)]
        env = {**os.environ, "LASTKEY_VENV": sys.prefix}
        completed = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
        assert completed.returncode == 0, completed.stderr
        logs = files_in(store / "segments", "**/*.log")
        stores.append({f"{p.parent.parent.name}/{p.name}": p.read_bytes() for p in logs})
    assert len(stores[0]) > 4
    assert stores[0] == stores[1]
    assert run("verify", "--store", tmp_path / "remote", "--topics", "orders")[0] == 0
