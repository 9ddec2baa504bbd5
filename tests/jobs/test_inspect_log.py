"""`inspect` through its command line: lines on stdout, findings on stderr, files with --output, exit codes."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lastkey.jobs.command import cli
from tests.builders.damage import build
from tests.builders.logs import START_MS, write_partition
from tests.builders.trees import files_in
from tests.golden import golden


@pytest.fixture
def archive(tmp_path):
    write_partition(tmp_path / "archive" / "users-0", "a=1 b=2 | {codec=zstd} a=3 =4 || c=\x00\x05")
    write_partition(tmp_path / "archive" / "orders-1", "x=9")
    return tmp_path / "archive"


def inspect(*arguments):
    """Run inspect, and return (exit code, stdout, stderr)."""
    result = CliRunner().invoke(cli.lastkey, ["inspect", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_file_is_printed_as_by_kafka_dump_log(tmp_path_factory, monkeypatch):
    case = golden(tmp_path_factory)["txn-zstd"]
    monkeypatch.chdir(case.folder)
    path, expected = next((p, t) for p, t in case.dumps().items() if p.suffix == ".log")
    code, out, err = inspect(path.relative_to(case.folder), "--print", "data")
    assert (code, out) == (0, expected.read_text())
    assert all(line.startswith(("Non-consecutive", "  ")) for line in err.splitlines())


def test_topics_option_selects_partitions_of_a_folder(archive):
    _, out, _ = inspect(archive, "--topics", "ord*")
    assert "orders-1/00000000000000000000.log" in out
    assert "users" not in out


def test_filters_choose_records_by_key_offset_and_time(archive):
    code, out, _ = inspect(archive / "users-0" / "00000000000000000000.log", "--print", "data", "--key", "a")
    assert code == 0
    assert [line.split()[2] for line in out.splitlines() if line.startswith("| ")] == ["0", "2"]
    _, out, _ = inspect(archive, "--print", "records", "--key", "0x62")
    assert [line.split()[2] for line in out.splitlines() if line.startswith("| ")] == ["1"]
    _, out, _ = inspect(archive, "--print", "records", "--offset", "1..3", "--topics", "users")
    assert [line.split()[2] for line in out.splitlines() if line.startswith("| ")] == ["1", "2"]
    _, out, _ = inspect(archive, "--print", "records", "--time", f"..{START_MS + 1}", "--topics", "users")
    assert [line.split()[2] for line in out.splitlines() if line.startswith("| ")] == ["0"]


def test_decoders_show_malformed_values(archive):
    log = archive / "users-0" / "00000000000000000004.log"
    _, out, _ = inspect(log, "--value-decoder", "short", "--key-decoder", "hex")
    assert "key: 63 payload: 5" in out
    _, out, _ = inspect(log, "--value-decoder", "long")
    assert "payload: <no long: 0x0005>" in out


def test_json_output_has_one_object_per_line(archive):
    code, out, _ = inspect(archive, "--json", "--print", "data")
    objects = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [o["key"] for o in objects if o["type"] == "record"] == ["x", "a", "b", "a", "", "c"]


LIMITS = [
    ["--key", "a"], ["--offset", "3..9"], ["--offset", "5.."], ["--time", f"{START_MS + 2}..{START_MS + 8}"],
    ["--offset", "2..30", "--key", "b", "--time", f"{START_MS + 7}.."],
]  # fmt: skip


@pytest.mark.parametrize("limits", LIMITS, ids=" ".join)
@pytest.mark.parametrize("as_json", [False, True])
def test_search_prints_the_matching_lines_of_a_complete_dump(tmp_path, monkeypatch, limits, as_json):
    """In threads, one file after the other, and where a task finds more than it may carry."""
    text = "a=1 b=2 | {codec=zstd} a=3 c=4 || c=5 | {pid=1 txn} b=6 a=7 || {pid=1 commit} | {last=12} | a=13 b=14"
    for number in (0, 1, 10):
        write_partition(tmp_path / f"t-{number}", text)
    flags = ["--print", "data", *(["--json"] if as_json else [])]
    whole = inspect(tmp_path, "--print", "data", "--json")[1]
    records = [o for o in map(json.loads, whole.splitlines()) if o["type"] == "record"]
    expected = [(o["file"], o["offset"]) for o in records if fits(o, limits)]
    assert expected
    one_by_one = inspect(tmp_path, *flags, *limits)
    if as_json:
        objects = [json.loads(line) for line in one_by_one[1].splitlines()]
        assert [(o["file"], o["offset"]) for o in objects if o["type"] == "record"] == expected
        assert {o["file"] for o in objects} == {file for file, _ in expected}
    else:
        assert re.findall("Dumping (.*)", one_by_one[1]) == list(dict.fromkeys(file for file, _ in expected))
        assert len(re.findall(r"(?m)^\| offset", one_by_one[1])) == len(expected)
    assert one_by_one[2] == ""
    monkeypatch.setattr("lastkey.jobs.inspect_log._SEARCH_BYTES", 0)
    for task, most in ((0, 4 << 20), (1 << 20, 4 << 20), (300, 0)):
        monkeypatch.setattr("lastkey.udfs.dump_files._TASK_BYTES", task)
        monkeypatch.setattr("lastkey.udfs.dump_files._MOST_FOUND", most)
        assert inspect(tmp_path, *flags, *limits) == one_by_one


def fits(record, limits):
    for option, value in zip(limits[::2], limits[1::2], strict=True):
        if option == "--key":
            if record["key"] != value:
                return False
            continue
        first, _, end = value.partition("..")
        at = record["offset" if option == "--offset" else "timestamp"]
        if (first and at < int(first)) or (end and at >= int(end)):
            return False
    return True


@pytest.mark.spark
@pytest.mark.slow
def test_search_on_spark_equals_search_in_threads(spark, tmp_path, monkeypatch):
    for number in range(3):
        write_partition(tmp_path / f"t-{number}", "a=1 b=2 || a=3")
    alone = inspect(tmp_path, "--print", "data", "--key", "a")
    monkeypatch.setattr("lastkey.jobs.inspect_log._SEARCH_BYTES", 0)
    monkeypatch.setattr("lastkey.jobs.spark.engine.OF_READERS", "spark")
    monkeypatch.setattr("lastkey.jobs.spark.session.start", lambda **_: spark)
    assert inspect(tmp_path, "--print", "data", "--key", "a") == alone


def test_two_outputs_with_one_name_are_refused(tmp_path, capsys):
    for archive in "ab":
        write_partition(tmp_path / archive / "t-0", "a=1")
    assert cli.main(["inspect", str(tmp_path / "a"), str(tmp_path / "b"), "--output", str(tmp_path / "texts")]) == 2
    output = capsys.readouterr().err
    assert "a/t-0/00000000000000000000.index and" in output
    assert "would both become t-0/00000000000000000000.index.txt; give them one at a time" in output


@pytest.mark.parametrize("as_json", [False, True])
def test_output_has_one_text_per_file(archive, tmp_path, as_json):
    output = tmp_path / "texts"
    flags = ["--json"] if as_json else []
    code, out, _ = inspect(archive, "--output", output, "--print", "records", *flags)
    assert code == 0
    suffix = "jsonl" if as_json else "txt"
    texts = {p.relative_to(output).as_posix() for p in files_in(output, "**/*.*") if p.is_file()}
    assert f"users-0/00000000000000000000.log.{suffix}" in texts
    assert f"orders-1/leader-epoch-checkpoint.{suffix}" in texts
    if as_json:
        assert {f["text"] for f in json.loads(out)["files"]} == texts
    else:
        log = archive / "users-0" / "00000000000000000000.log"
        text = (output / "users-0" / f"{log.name}.txt").read_text()
        assert text == inspect(log, "--print", "records")[1]


def test_damage_has_exit_code_3(archive):
    log = archive / "orders-1" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[16] = 7
    log.write_bytes(data)
    code, _, err = inspect(archive)
    assert code == 3
    assert "expected magic 0 to 3, found 7" in err


def test_wrong_indexes_have_exit_code_3_with_verification(archive):
    index = archive / "users-0" / "00000000000000000000.timeindex"
    data = bytearray(index.read_bytes())
    data[7] ^= 1
    index.write_bytes(data)
    assert inspect(index)[0] == 0
    code, out, err = inspect(index, "--print", "mismatches")
    assert (code, out) == (3, f"Dumping {index}\n")
    assert "Found timestamp mismatch" in err


def test_index_mismatches_are_json_objects(tmp_path):
    """With --json on stdout and in the files of --output; the text on stderr is Kafka's in any case."""
    part = build(tmp_path / "archive")
    index, times = (part.folder / f"{12:020d}.{kind}" for kind in ("index", "timeindex"))
    assert inspect(part.folder, "--print", "mismatches", "--json") == (0, "", "")
    (first, offset), (second, last) = struct.iter_unpack(">qi", times.read_bytes())
    index.write_bytes(struct.pack(">iiii", 1, 0, 2, 1))
    times.write_bytes(struct.pack(">qiqiqi", first + 9, offset, second, last, second, 10**6))
    code, out, err = inspect(part.folder, "--print", "mismatches", "--json")
    assert (code, err) == (3, inspect(part.folder, "--print", "mismatches")[2])
    assert [json.loads(line) for line in out.splitlines()] == [
        {"file": str(index), "type": "offsetMismatch", "indexOffset": 13, "logOffset": 15},
        {"file": str(index), "type": "offsetMismatch", "indexOffset": 14, "logOffset": None},
        {"file": str(times), "type": "timestampMismatch", "indexTimestamp": first + 9, "logTimestamp": first},
        {"file": str(times), "type": "timestampOutOfOrder", "indexTimestamp": second, "previousTimestamp": first + 9},
        {"file": str(times), "type": "offsetNotFound", "indexOffset": 12 + 10**6, "logOffset": None},
    ]
    assert inspect(part.folder, "--print", "mismatches", "--json", "--output", tmp_path / "texts")[0] == 3
    assert "".join(p.read_text() for p in files_in(tmp_path / "texts", "**/*.jsonl")) == out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--offset", "5"], "expected FROM..TO"),
        (["--offset", "5..9223372036854775808"], "expected FROM..TO"),
        (["--time", "..9223372036854775808"], "expected milliseconds up to"),
        (["--time", "yesterday.."], "no such time: yesterday"),
        (["--key-decoder", "strin"], "did you mean string?"),
    ],
)
def test_errors_for_wrong_options_name_the_expected_value(archive, arguments, message, capsys):
    assert cli.main(["inspect", str(archive), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_paths_without_logs_are_refused(archive, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        ([archive, tmp_path / "gone"], f"{tmp_path}/gone: expected a file or a folder, found nothing"),
        ([tmp_path / "empty"], "expected log files, indexes, snapshots or checkpoints, found none"),
        ([archive, "--topics", "user"], f"no topic of {archive} matches user; did you mean users?"),
        ([], "inspect needs PATHS"),
    ):
        assert cli.main(["inspect", *map(str, arguments)]) == 2
        done = capsys.readouterr()
        assert message in done.err
        assert done.out == ""


def test_key_option_alone_prints_records(archive):
    with_data = inspect(archive, "--key", "a", "--print", "data")
    assert inspect(archive, "--key", "a") == with_data
    assert " payload: " not in inspect(archive, "--key", "a", "--print", "records")[1]


def test_folder_argument_verifies_only_indexes(archive):
    _, out, _ = inspect(archive, "--print", "mismatches")
    assert set(re.findall(r"Dumping .*\.(\w+)", out)) == {"index", "timeindex"}
    [log] = (archive / "orders-1").glob("*.log")
    assert "baseOffset: 0" in inspect(log, "--print", "mismatches")[1]


@pytest.mark.slow
def test_inspect_ends_silently_when_its_reader_closes_the_pipe(archive):
    """As in `inspect ... | head`: no message, and the exit code of a closed pipe."""
    command = [sys.executable, "-m", "lastkey", "inspect", str(archive)]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=root) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == (b"", 141)


def test_non_empty_output_is_refused(archive, tmp_path, capsys):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "x").write_text("")
    assert cli.main(["inspect", str(archive), "--output", str(tmp_path / "texts")]) == 2
    assert "expected an empty or absent folder, found x" in capsys.readouterr().err


def test_records_of_internal_topics_are_decoded():
    folder = Path(__file__).resolve().parents[2] / "examples" / "archive" / "__transaction_state-0"
    code, out, _ = inspect(folder, "--decoder", "transaction-log")
    assert code == 0
    assert re.search(r'key: \{"type":"0","data":\{"transactionalId":"\w+', out)
    assert inspect(folder, "--json", "--decoder", "transaction-log")[0] == 0


@pytest.mark.parametrize(
    ("limits", "passes"),
    [
        (("--offset", "..30"), True), (("--offset", "13.."), True), (("--offset", "..12"), False),
        (("--offset", "24.."), False), (("--key", "key-1"), True), (("--time", "2023-01-01.."), True),
        ((), False),
    ],
)  # fmt: skip
def test_missing_segment_in_the_searched_range_is_a_problem(tmp_path, capsys, limits, passes):
    """A folder of a partition, or above it; files that are named are what was asked for, and so is a whole folder."""
    part = build(tmp_path / "archive")
    for path in files_in(part.folder, f"{12:020d}.*"):
        path.unlink()
    for folder in (part.root, part.folder):
        assert cli.main(["inspect", str(folder), *limits]) == (3 if passes else 0)
        message = f"problem: {part.log(24)} at byte 0: gap: expected a segment that begins at offset 12"
        assert (message in capsys.readouterr().err) == passes
        assert cli.main(["inspect", str(folder), *limits, "--set", "gaps=accept"]) == 0
    assert cli.main(["inspect", *map(str, files_in(part.folder)), *limits]) == 0
    (part.folder / f"{0:020d}.log").rename(tmp_path / "first")
    assert cli.main(["inspect", str(part.root), "--offset", "..5"]) == 3  # no existing record matches
    (tmp_path / "first").rename(part.folder / f"{0:020d}.log")
    texts = tmp_path / "texts"
    capsys.readouterr()
    code = cli.main(["inspect", str(part.root), *limits, "--output", str(texts), "--json"])
    assert code == (3 if passes else 0)
    assert [message.removeprefix("problem: ") in p for p in json.loads(capsys.readouterr().out)["problems"]] == (
        [True] if passes else []
    )
