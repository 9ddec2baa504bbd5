"""The Python API: the command line's options and words; signals, log and stdout stay the caller's."""

from __future__ import annotations

import errno
import json
import logging
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import lastkey
from lastkey.jobs.command import cli, functions, stopping
from lastkey.jobs.command.config import parse_config
from lastkey.jobs.command.functions import COMMANDS
from lastkey.jobs.errors import JobError, MachineError, MissingPathError, RunningError, UsageError
from lastkey.jobs.topics import EVERY_TOPIC
from lastkey.logformat.errors import AccessError, LogFormatError
from lastkey.logformat.storage.access_error import DENIED

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "archive"
JOBS = ("compact", "erase", "verify", "reindex", "restore", "convert")
BAD_SETTING = {"defaults": {"segment.byte": 1}}


# -- names


def test_importing_the_package_loads_no_heavy_module_and_exports_all_names():
    code = (
        "import sys, lastkey; heavy = {'pyspark', 'numba', 'pyarrow', 'numpy', 'click', 'pandas'} & set(sys.modules);"
        "print(sorted(heavy), set(lastkey.__all__) <= set(dir(lastkey)));"
        "from lastkey import compact; print('pyspark' in sys.modules, 'numba' in sys.modules);"
        "import lastkey.jobs.compact.job; print('pyspark' in sys.modules)"  # threads run without pyspark
    )
    completed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert completed.stdout == "[] True\nFalse False\nFalse\n"


def test_every_public_name_exists_is_documented_and_names_its_module():
    assert sorted(lastkey.__all__) == sorted(lastkey._HOMES)
    for name in lastkey.__all__:
        public = getattr(lastkey, name)
        assert (public.__name__, public.__doc__ is None) == (name, False)
    with pytest.raises(AttributeError, match="'lastkey' has no attribute 'compacted'"):
        _ = lastkey.compacted


# -- what is asked for


class _Seen(Exception):
    def __init__(self, options: object) -> None:
        self.options = options


def _sees(options, progress):
    raise _Seen(options)


@pytest.fixture
def received_options(monkeypatch):
    """Return a function that calls a job of the API, and returns the options that reach the job."""
    module = type("Job", (), {"run": staticmethod(_sees)})
    monkeypatch.setattr(functions, "imported", lambda job: module)

    def options(job, *args, **given):
        with pytest.raises(_Seen) as seen:
            getattr(lastkey, job)(*args, **given)
        return seen.value.options

    return options


def test_globs_settings_and_paths_accept_python_types(received_options, tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("c\n")
    config = tmp_path / "c.toml"
    config.write_text("[topics.a]\n'cleanup.policy' = 'compact'\n")
    tables = {"topics": {"a": {"cleanup.policy": "compact"}}}
    single = received_options(
        "compact", tmp_path, str(tmp_path / "s"), topics="a,b", topics_from=names, config=config, reset="a,b"
    )
    several = {"topics": ["a", "b"], "topics_from": [names], "reset": ["a", "b"]}
    more = received_options("compact", str(tmp_path), tmp_path / "s", config=tables, **several)
    assert single.config.topics == more.config.topics == parse_config(tables).topics
    assert (single.topics.include, single.topics, single.reset) == (("a", "b", "c"), more.topics, more.reset)
    assert (single.archive, single.store) == (more.archive, more.store) == (str(tmp_path), str(tmp_path / "s"))
    assert received_options("reindex", "A", check=True, partitions=[3, 4]).partitions == (range(3, 4), range(4, 5))
    assert received_options("reindex", "A", check=True, partitions="3-4").partitions == (range(3, 5),)
    assert received_options("reindex", "A", output=tmp_path / "o").mode == "output"


NEEDED = {
    "compact": {"archive": "A", "store": "S"},
    "erase": {"store": "S", "hmac_key": "H"},
    "verify": {"archive": "A"},
    "reindex": {"archive": "A", "check": True},
    "restore": {"store": "S", "output": "D"},
    "convert": {"archive": "A", "to": "v3", "output": "D"},
}


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize(("name", "what"), [("topics", "glob"), ("topics_from", "file")])
def test_a_list_that_narrows_a_run_never_widens_it_when_it_is_empty(job, name, what, received_options):
    """`topics=[]` selects no topic: a program that computes an empty list must not erase from the whole store."""
    option = f"--{name.replace('_', '-')}"
    message = f"{option}: expected at least one {what}, found none; leave it out to take all"
    for empty in ([], (), set(), iter(())):
        for more in ({}, {"topics" if name == "topics_from" else "topics_from": "other"}):
            with pytest.raises(UsageError) as raised:
                getattr(lastkey, job)(**NEEDED[job], **{name: empty}, **more)
            assert raised.value.line() == message
    received = (
        received_options(job, **NEEDED[job]),
        received_options(job, **NEEDED[job], **{name: None}),
        received_options(job, **NEEDED[job], exclude=[]),
    )
    assert [options.topics for options in received] == [EVERY_TOPIC] * 3


def test_empty_options_are_accepted(received_options):
    assert received_options("compact", "A", "S", reset=[]).reset is None
    assert received_options("erase", "S", "H", key=[], keys="F").key == ()
    with pytest.raises(TypeError, match=r"partitions: expected numbers of partitions, .*, found \[\]"):
        lastkey.reindex("A", check=True, partitions=[])


@pytest.mark.parametrize(
    ("job", "given", "message"),
    [
        ("compact", {"archive": None}, "archive: expected a path or URI, found None"),
        ("compact", {"store": b"S"}, "store: expected a path or URI, found b'S'"),
        ("compact", {"topics": 5}, "topics: expected globs of topics as text, or several of them, found 5"),
        ("compact", {"reset": [5]}, "reset: expected globs of topics as text, or several of them, found [5]"),
        ("compact", {"sealed": "yes"}, "sealed: expected true or false, found 'yes'"),
        ("compact", {"now_ms": 1.5}, "now_ms: expected a whole number, found 1.5"),
        ("compact", {"engine": True}, "engine: expected default or spark or threads or auto, found True"),
        ("compact", {"overrides": 5}, "overrides: expected NAME=VALUE, or several of them, found 5"),
        ("compact", {"config": 5}, "config: expected a path or URI, found 5"),
        ("compact", {"gap": "accept"}, "compact() got an unexpected keyword argument 'gap'"),
        ("verify", {"generation": "3", "archive": None}, "generation: expected a whole number from 1 on, found '3'"),
        ("reindex", {"check": True, "partitions": 3}, "partitions: expected numbers of partitions"),
    ],
)
def test_an_argument_of_another_type_is_a_type_error(job, given, message):
    given = ({"archive": "A", "store": "S"} if job == "compact" else {"archive": "A"}) | given
    with pytest.raises(TypeError) as raised:
        getattr(lastkey, job)(**given)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("job", "given", "words"),
    [
        ("compact", {"archive": "/nope", "store": "S"}, "/nope --store S"),
        ("compact", {"archive": EXAMPLE, "store": "S", "topics": "nope"}, f"{EXAMPLE} --store S --topics nope"),
        (
            "compact",
            {"archive": "A", "store": "S", "cleanup_policy": "compact"},
            "A --store S --cleanup-policy compact",
        ),
        ("compact", {"archive": "A", "store": "S", "now_ms": 1_700_000_000}, "A --store S --now 1700000000"),
        ("compact", {"archive": "A", "store": "S", "config": "none.toml"}, "A --store S --config none.toml"),
        ("compact", {"archive": "A", "store": "S", "reset": ","}, "A --store S --reset ,"),
        ("compact", {"archive": "x://b", "store": "S"}, "x://b --store S"),
        ("compact", {"archive": "s3://id:word@b/a", "store": "S"}, "s3://id:word@b/a --store S"),
        ("verify", {}, ""),
        ("verify", {"archive": "A", "generation": 2}, "A --generation 2"),
        ("verify", {"store": "/nope"}, "--store /nope"),
        ("reindex", {"archive": "A"}, "A"),
        ("reindex", {"archive": "A", "check": True, "partitions": "x"}, "A --check --partition x"),
        ("restore", {"store": EXAMPLE, "output": EXAMPLE}, f"--store {EXAMPLE} --output {EXAMPLE}"),
        (
            "restore",
            {"store": "S", "output": "D", "full_clean": True, "generation": 1},
            "--store S --output D --full-clean --generation 1",
        ),
        ("convert", {"to": "v3", "output": "D"}, "--to v3 --output D"),
        ("convert", {"archive": "A", "store": "S", "to": "v3", "output": "D"}, "A --store S --to v3 --output D"),
        ("convert", {"archive": EXAMPLE, "to": "v3", "output": ROOT}, f"{EXAMPLE} --to v3 --output {ROOT}"),
    ],
)
def test_error_text_equals_that_of_the_command_line(job, given, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)
    code = cli.main([job, *words.split()])
    signal.signal(signal.SIGTERM, handler)
    shown = capsys.readouterr().err
    with pytest.raises(UsageError) as raised:
        getattr(lastkey, job)(**given)
    assert (code, shown) == (raised.value.exit_code, f"error: {raised.value.line()}\n")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"overrides": {"gaps": "no"}}, "--set: NAME=VALUE: gaps: expected fail or accept, found 'no'"),
        ({"overrides": "segment.bytes=1"}, "--set: NAME=VALUE: segment.bytes: expected a whole number from 14 to 2147"),
        ({"overrides": {"gap": "accept"}}, "--set: NAME=VALUE: unknown setting 'gap'; did you mean gaps"),
        ({"overrides": "cleanup.policy=compact"}, "--set: give --cleanup-policy compact with --topics instead"),
        ({"overrides": ["gaps=fail", "gaps=accept"]}, "--set: expected one value of gaps, found 'gaps=accept'"),
        ({"config": BAD_SETTING}, "settings: [defaults]: unknown setting 'segment.byte'"),
    ],
)
def test_value_that_click_refuses_is_a_usage_error(given, message):
    with pytest.raises(UsageError) as raised:
        lastkey.compact("A", "S", **given)
    assert raised.value.line().startswith(message)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), MachineError),
        (AccessError(DENIED, "s3://b", "403"), JobError),
        (RunningError(path="S", expected="x", found="y", expiry="z"), RunningError),
        (ValueError("of ours"), ValueError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_api_raises_job_errors_and_propagates_defects(error, kind, monkeypatch, tmp_path):
    def fails(options, progress):
        raise error

    monkeypatch.setattr(functions, "imported", lambda job: type("Job", (), {"run": staticmethod(fails)}))
    with pytest.raises(kind) as raised:
        lastkey.restore(tmp_path / "store", tmp_path / "out")
    if type(error) is OSError:
        assert str(tmp_path) in raised.value.line() or "free" in raised.value.line()
        assert raised.value.__cause__ is error


# -- the jobs


def test_job_called_from_a_thread_does_not_change_signals_log_and_stdout(tmp_path, capfd, now_ms):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)], logging.getLogger().handlers[:]
    store, out, reports = tmp_path / "store", tmp_path / "out", []

    def work():
        reports.append(lastkey.compact(EXAMPLE, store, topics="prices", cleanup_policy="compact", now_ms=now_ms))
        reports.append(lastkey.verify(store=store))
        reports.append(lastkey.restore(store, out))
        reports.append(lastkey.reindex(out, check=True))
        reports.append(lastkey.convert(out, to="v3", output=tmp_path / "v3", engine="threads"))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [(type(report), report.exit_code, report.problems) for report in reports] == [
        (kind, 0, [])
        for kind in (
            lastkey.CompactReport,
            lastkey.VerifyReport,
            lastkey.RestoreReport,
            lastkey.ReindexReport,
            lastkey.ConvertReport,
        )
    ]
    assert before == (
        [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        logging.getLogger().handlers[:],
    )
    assert capfd.readouterr().out == ""
    assert json.dumps([report.to_json() for report in reports])


def test_api_leaves_signals_to_the_caller(tmp_path, monkeypatch, now_ms):
    seen = []
    monkeypatch.setattr(signal, "signal", lambda *given: seen.append(given))
    lastkey.compact(EXAMPLE, tmp_path / "store", topics="prices", cleanup_policy="compact", now_ms=now_ms)
    assert seen == []
    assert not stopping._HANDLES.get()


def test_uncleanable_partitions_are_in_the_report(tmp_path, now_ms):
    shutil.copytree(EXAMPLE, tmp_path / "archive")
    _remove_second_segment(tmp_path / "archive" / "clicks-0")
    report = lastkey.compact(
        tmp_path / "archive", tmp_path / "store", topics="clicks,prices", cleanup_policy="compact", now_ms=now_ms
    )
    assert (report.exit_code, [(p.kind, p.path.partition("/")[0]) for p in report.problems]) == (
        3,
        [("gap", "clicks-0")],
    )
    assert ("prices", 0) in report.generations


# -- one partition


def _remove_second_segment(folder: Path) -> Path:
    second = sorted(folder.glob("*.log"))[1]
    for path in folder.glob(f"{second.stem}.*"):
        path.unlink()
    return second


def test_open_partition_reads_records_of_all_segments():
    with lastkey.open_partition(EXAMPLE / "clicks-0") as log:
        every = pa.Table.from_batches(log.records())
        parts = [lastkey.open_segment(path).to_arrow() for path in sorted((EXAMPLE / "clicks-0").glob("*.log"))]
        assert every.combine_chunks().equals(pa.concat_tables(parts).combine_chunks())
        some = pa.Table.from_batches(log.records(["offset"], start_offset=2600, end_offset=2700))
        assert some.column_names == ["offset"]
        assert some["offset"].to_pylist() == list(range(2600, 2700))  # two segments
        assert list(log.records(["offset"], start_offset=log.latest)) == []
        with pytest.raises(ValueError, match="no such column: 'ofset'"):
            log.records(["ofset"])


def test_open_partition_fails_at_a_gap_unless_gaps_are_accepted(tmp_path):
    """`logformat.open_partition` skips the gap silently."""
    folder = tmp_path / "clicks-0"
    shutil.copytree(EXAMPLE / "clicks-0", folder)
    _remove_second_segment(folder)
    with pytest.raises(LogFormatError) as raised:
        lastkey.open_partition(folder)
    assert (raised.value.kind, raised.value.path) == ("gap", str(folder / "00000000000000005310.log"))
    assert "expected a segment that begins at offset 2621" in str(raised.value)
    assert str(raised.value).endswith('or gaps="accept" if it is known to be lost')
    rest = lastkey.open_partition(folder, gaps="accept")
    assert sum(batch.num_rows for batch in rest.records(["offset"])) == 9000 - (5310 - 2621)


@pytest.mark.parametrize(
    ("path", "gaps", "kind", "message"),
    [
        (EXAMPLE / "nope-0", "fail", MissingPathError, "nope-0: expected a partition's folder, found none"),
        (EXAMPLE, "fail", UsageError, "expected a partition's folder, <topic>-<partition>"),
        (EXAMPLE / "clicks-0", "no", UsageError, "gaps: expected fail or accept, found 'no'"),
        (5, "fail", TypeError, "path_or_uri: expected a path or URI, found 5"),
    ],
)
def test_invalid_partition_paths_are_refused(path, gaps, kind, message):
    with pytest.raises(kind) as raised:
        lastkey.open_partition(path, gaps=gaps)
    assert message in str(raised.value)


def test_missing_archive_is_refused():
    with pytest.raises(MissingPathError, match="/nope: expected a folder with Kafka log directories, found none"):
        lastkey.open_archive("/nope")
    with pytest.raises(TypeError, match="path_or_uri: expected a path or URI, found 5"):
        lastkey.open_archive(5)


@pytest.mark.parametrize(
    ("places", "given", "message"),
    [
        (("key",), {}, "audit: expected keys or delivery or mirror or failover, found 'key'"),
        (("keys", "archive"), {"partition_count": "t"}, "--partition-count: expected TOPIC=N"),
        (("keys",), {}, "audit keys needs either ARCHIVE or --store STORE"),
        (("keys", "archive"), {}, "name a place for them with --audits STORE"),
    ],
)
def test_audit_function_equals_its_command(places, given, message):
    with pytest.raises(UsageError) as raised:
        lastkey.audit(*places, **given)
    assert message in raised.value.line()
    with pytest.raises(TypeError, match="engine: expected default or spark"):
        lastkey.audit("keys", "archive", engine=object())
    with pytest.raises(TypeError, match=r"audit_keys\(\) got an unexpected keyword argument 'hidekeys'"):
        lastkey.audit("keys", "archive", hidekeys=True)


def test_an_audit_is_never_widened_by_an_empty_list(received_options):
    """Some of the options that may be repeated only add; each of the others narrows."""
    for name, command in COMMANDS.items():
        kind = name.removeprefix("audit ")
        places = ("A", "B") if kind in ("mirror", "failover") else ("A",)
        least = {"audits": "S"} | ({"group": "g"} if kind == "failover" else {})
        for option in [value.flag[2:].replace("-", "_") for value in command.values if value.kind.repeats]:
            for empty in ([], (), iter(())) if name != kind else ():
                if option in ("exclude", "folders", "partition_count", "rename", "set"):
                    received_options("audit", kind, *places, **least, **{option: empty})
                    continue
                with pytest.raises(UsageError, match=f"--{option.replace('_', '-')}: expected at least one "):
                    lastkey.audit(kind, *places, **least, **{option: empty})
    received = received_options("audit", "keys", "A", audits="S", topics=None, exclude=["a", "b"])
    assert (received.topics.include, received.topics.exclude) == ((), ("a", "b"))
