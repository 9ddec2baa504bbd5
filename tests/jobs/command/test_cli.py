from __future__ import annotations

import errno
import io
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import types
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from deltalake.exceptions import DeltaError

from lastkey.jobs import errors
from lastkey.jobs.command import cli, functions
from lastkey.jobs.command.options import CompactOptions, VerifyOptions
from lastkey.jobs.command.progress import LogAboveTheBar
from lastkey.jobs.command.reporting import TextTable, Work, size, table
from lastkey.jobs.command.stopping import InterruptedRunError, TerminatedError
from lastkey.jobs.command.store_options import RestoreOptions, VacuumOptions
from lastkey.jobs.errors import MISSING_FILE, ConflictError
from lastkey.jobs.spark import session, submit
from lastkey.jobs.topics import EVERY_TOPIC, TopicFilter
from lastkey.logformat.errors import PlaceError

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class _Report:
    exit_code: int = 0
    work: Work | None = None
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def to_json(self):
        return {"kept": 3}

    def to_text(self, width=0):
        return "kept 3"

    def stderr_lines(self):
        return []


@pytest.fixture
def job(monkeypatch):
    """Job that every command runs in place of its module."""
    module = types.ModuleType("fake_job")
    module.seen = []
    module.outcome = _Report()

    def run(options, progress):
        progress.start("phase", 2)
        progress.advance()
        module.seen.append(options)
        if isinstance(module.outcome, BaseException):
            raise module.outcome
        return module.outcome

    module.run = run
    monkeypatch.setitem(sys.modules, "fake_job", module)
    monkeypatch.setattr(functions, "JOBS", dict.fromkeys(functions.JOBS, "fake_job"))
    previous = signal.getsignal(signal.SIGTERM)
    yield module
    signal.signal(signal.SIGTERM, previous)


def test_compact_accepts_every_documented_option(job, capsys, tmp_path):
    config = tmp_path / "c.toml"
    config.write_text('[topics."o-*"]\n"cleanup.policy" = "compact"\n')
    code = cli.main(
        ["compact", "A", "--store", "S", "--topics", "o-*", "--cleanup-policy", "compact", "--config", str(config),
         "--now", "1700000000000", "--set", "null.keys=drop", "--set", "gaps=accept", "--sealed", "--force",
         "--reset", "x*", "--reset=y,z", "--dry-run", "--engine", "threads", "--json"]
    )  # fmt: skip
    assert code == 0
    assert json.loads(capsys.readouterr().out) == {"kept": 3}
    (options,) = job.seen
    settings = options.config.topic_settings("o-1")
    assert (settings.compacts, settings.null_keys, settings.gaps) == (True, "drop", "accept")
    assert options == CompactOptions(
        "A",
        "S",
        now_ms=1_700_000_000_000,
        config=options.config,
        topics=TopicFilter(("o-*",)),
        engine="threads",
        cleanup_policy="compact",
        sealed=True,
        force=True,
        reset=TopicFilter(("x*", "y", "z")),
        dry_run=True,
    )


def test_default_output_is_text_and_default_time_is_the_clock(job, capsys):
    assert cli.main(["compact", "A", "--store", "S"]) == 0
    assert capsys.readouterr().out == "kept 3\n"
    assert job.seen[0].now_ms > 1_700_000_000_000
    assert job.seen[0].topics == EVERY_TOPIC


def test_each_job_gets_its_options_from_the_command_line(job):
    assert cli.main(["verify", "A"]) == 0
    assert cli.main(["verify", "--store", "S", "--generation", "3", "--topics", "t"]) == 0
    assert cli.main(["restore", "--store", "S", "--output", "D", "--generation", "2", "--archive", "B"]) == 0
    assert cli.main(["vacuum", "--store", "S", "--grace-hours", "1.5", "--dry-run"]) == 0
    assert [type(options) for options in job.seen] == [VerifyOptions, VerifyOptions, RestoreOptions, VacuumOptions]
    assert job.seen[1].generation == 3
    assert job.seen[2].archive == "B"
    assert (job.seen[3].grace_hours, job.seen[3].dry_run) == (1.5, True)


SELECTING = ["--topics", "a", "--topics=b,c*", "--exclude", "c1", "--exclude", "d"]


@pytest.mark.parametrize(
    "words",
    [
        ["compact", "A", "--store", "S"],
        ["verify", "A"],
        ["reindex", "A", "--check"],
        ["restore", "--store", "S", "--output", "D"],
        ["runs", "--store", "S"],
        ["rollback", "--store", "S", "--generation", "1"],
        ["vacuum", "--store", "S"],
        ["lookup", "A", "--offset", "1"],
        ["report", "A", "--output", "P"],
    ],
    ids=lambda words: words[0],
)
def test_repeated_topics_option_adds_patterns(job, tmp_path, words):
    (tmp_path / "list").write_text("e\n")
    assert cli.main([*words, *SELECTING, "--topics-from", str(tmp_path / "list")]) == 0
    assert job.seen[0].topics == TopicFilter(("a", "b", "c*", "e"), ("c1", "d"))
    assert cli.main(["vacuum", "--store", "S", "--give-up", "a", "--give-up", "b,c"]) == 0
    assert job.seen[1].give_up == TopicFilter(("a", "b", "c"))


ALONE = {name: command for name, command in cli.lastkey.commands.items() if name != "audit"} | {
    f"audit {name}": command for name, command in cli.lastkey.commands["audit"].commands.items()
}


@pytest.mark.parametrize("name", ALONE)
def test_repeating_any_other_option_is_a_usage_error(job, capsys, name):
    """click would silently use the last value."""
    params = ALONE[name].params
    once = [p.opts[0] for p in params if p.param_type_name == "option" and not p.is_flag and not p.multiple]
    assert "--config" in once or name == "pack"  # pack has no settings
    for option in once:
        for words in ([option, "1", option, "2"], [f"{option}=1", "x", option, "2"]):
            assert cli.main([*name.split(), *words, "--json"]) == errors.USAGE
            out, err = capsys.readouterr()
            assert err == f"error: {option}: expected at most one, found '1' and '2'\n"
            assert json.loads(out)["error"]["kind"] == "UsageError"
    assert not job.seen


def test_a_switch_may_be_repeated_but_not_contradicted(job, capsys):
    assert cli.main(["verify", "A", "--sealed", "--sealed", "--no-progress", "--no-progress"]) == 0
    assert job.seen[0].sealed
    for words, expected in (
        (["verify", "A", "--progress", "--no-progress"], "--progress contradicts --no-progress"),
        (["lookup", "A", "--sizing", "--no-refresh", "--refresh"], "--no-refresh contradicts --refresh"),
    ):
        assert cli.main(words) == errors.USAGE
        assert expected in capsys.readouterr().err
    assert len(job.seen) == 1


def test_a_shell_completes_options_again_that_may_be_repeated(monkeypatch, capsys):
    monkeypatch.setenv(cli.COMPLETE, "bash_complete")
    monkeypatch.setenv("COMP_CWORD", "8")
    for word, completed in (("--to", ["--topics", "--topics-from"]), ("--conf", []), ("--ex", ["--exclude"])):
        monkeypatch.setenv("COMP_WORDS", f"lastkey verify --topics a --config B --config C {word}")
        with pytest.raises(SystemExit):
            cli.lastkey.main([], prog_name="lastkey", complete_var=cli.COMPLETE)
        assert capsys.readouterr().out.split() == [f"plain,{option}" for option in completed]


def test_cleanup_policy_requires_topics_and_not_only_exclude(job, capsys):
    words = ["compact", "A", "--store", "S", "--cleanup-policy", "compact"]
    assert cli.main([*words, "--exclude", "a"]) == errors.USAGE
    assert "needs --topics" in capsys.readouterr().err
    assert cli.main([*words, "--topics", "*", "--exclude", "a"]) == 0


@pytest.mark.parametrize(
    ("words", "expected", "hint"),
    [
        (["verify", "A", "--config", "C"], None, "did you mean segment.bytes or "),
        (["compact", "A", "--store", "S", "--now", "1700000000"], "epoch milliseconds", "did you mean 1700000000000?"),
        (["verify", str(ROOT / "examples/archive"), "--topics", "usres"], None, "did you mean users or prices?"),
        (["--mster", "local", "verify", "A"], None, "did you mean --master"),
        (["verify", str(ROOT / "examples/archive/users-0")], "folders <topic>-<partition> of an archive", ""),
    ],
)
def test_json_error_has_the_hint_as_a_field(capsys, tmp_path, words, expected, hint):
    (tmp_path / "c.toml").write_text("[defaults]\n'segmnt.bytes' = 1\n")
    assert cli.main([str(tmp_path / "c.toml") if word == "C" else word for word in [*words, "--json"]]) == errors.USAGE
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert error["expected"] == expected
    assert error["hint"].startswith(hint) and bool(error["hint"]) == bool(hint)
    assert "did you mean" not in error["message"]
    assert error["found"] in (None, "segmnt.bytes", "1700000000: seconds", "none")
    assert err == "error: " + "; ".join(filter(None, (error["message"], error["hint"]))) + "\n"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["compact"], "Missing argument"),
        (["compact", "A"], "--store"),
        (["compact", "A", "--store", "S", "--cleanup-policy", "compact"], "needs --topics"),
        (
            ["compact", "A", "--store", "S", "--set", "null.keys=maybe"],
            "null.keys: expected fail or keep or drop, found 'maybe'",
        ),
        (["compact", "A", "--store", "S", "--now", "1700000000"], "seconds"),
        (["compact", "A", "--store", "S", "--config", "absent.toml"], "no such file"),
        (["compact", "A", "--store", "S", "--forse"], "--force"),
        (["verify"], "either ARCHIVE or --store"),
        (["verify", "A", "--store", "S"], "either ARCHIVE or --store"),
        (["verify", "A", "--generation", "1"], "work only with --store"),
        (["lookup", "A", "--offset", "1", "--generation", "1"], "--generation works only with --store"),
        (["lookup", "--store", "S", "--at", "2026-11-21", "--generation", "1"], "not with --at"),
        (["restore", "--store", "S"], "--output"),
        (["restore", "--store", "S", "--output", "D", "--generation", "0"], "generation"),
        (["vacuum", "--store", "S", "--grace-hours", "-1"], "grace-hours"),
        (["compress"], "No such command"),
    ],
)
def test_usage_error_has_exit_code_2_one_line_and_json(job, capsys, arguments, expected):
    assert cli.main([*arguments, "--json"]) == errors.USAGE
    out, err = capsys.readouterr()
    assert expected in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert json.loads(out)["error"]["exit_code"] == errors.USAGE
    assert not job.seen


@pytest.mark.parametrize("code", [0, 3])
def test_command_returns_the_exit_code_of_the_report(job, code):
    job.outcome = _Report(code)
    assert cli.main(["compact", "A", "--store", "S"]) == code


def test_error_has_path_expected_found_and_remedy(job, capsys):
    job.outcome = MISSING_FILE(path="t-0/1.log", expected="10 bytes", found="no such file")
    assert cli.main(["restore", "--store", "S", "--output", "D", "--json"]) == errors.PROBLEMS
    out, err = capsys.readouterr()
    assert err.startswith(
        "error: t-0/1.log: expected 10 bytes, found no such file; if the archive has moved, give --archive"
    )
    error = json.loads(out)["error"]
    assert (error["path"], error["expected"], error["found"]) == ("t-0/1.log", "10 bytes", "no such file")


# Java's lines below the error, where a worker ended before it said its process id
_NO_WORKER = (
    "\n\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:386)"
    "\n\tat org.apache.spark.api.python.PythonWorkerFactory.createWorker$1(PythonWorkerFactory.scala:188)"
)
_NO_DAEMON = (
    "org.apache.spark.SparkException: EOFException occurred while reading the port number from "
    "lastkey.jobs.spark.daemon's stdout.\n\tat org.apache.spark.errors.SparkCoreErrors$"
    ".eofExceptionWhileReadPortNumberError(SparkCoreErrors.scala:55)"
)


@pytest.mark.parametrize(
    ("raised", "code", "expected"),
    [
        (ConflictError(path="S", expected="a", found="b"), 4, "run again"),
        (OSError(28, "No space left on device", "/x"), 5, "/x: no space left"),
        (RuntimeError("java.io.IOException: No space left on device"), 5, "no space left"),
        (PermissionError(13, "Permission denied", "/x"), 5, "/x: Permission denied"),
        (OSError(24, "Too many open files", "/x"), 5, "ulimit -n"),
        (RuntimeError("can't start new thread"), 5, "ulimit -u"),
        (BlockingIOError(11, "Resource temporarily unavailable"), 5, "ulimit -u"),  # a fork fails
        (RuntimeError(f"Lost task 1.0: java.io.EOFException{_NO_WORKER}"), 5, "a worker of Spark ended"),
        (RuntimeError(f"Lost task 1.0: java.net.SocketException: Connection reset{_NO_WORKER}"), 5, "Connection reset"),
        (RuntimeError(f"Lost task 1.0: java.io.IOException: Broken pipe{_NO_WORKER}"), 5, "a worker of Spark ended"),
        (RuntimeError(f"Lost task 1.0: {_NO_DAEMON}"), 5, "EOFException occurred while reading the port number"),
        (OSError("error closing file"), 5, "error closing file"),  # as Arrow says it
        (
            FileExistsError(17, "Cannot create directory 'x': non-directory entry exists"),
            5,
            "non-directory entry exists",
        ),
        (OSError("Memory mapping file failed: Input/output error"), 5, "Input/output error"),
        (OSError("Couldn't deserialize thrift"), 1, "unexpected: OSError"),  # a file that was not written so
        (io.UnsupportedOperation("not writable"), 1, "unexpected: UnsupportedOperation"),
        (shutil.SameFileError("a and b are the same file"), 1, "unexpected: SameFileError"),
        (OSError("Error writing bytes to file. Detail: [errno 5] Input/output error"), 5, "Input/output error"),
        (DeltaError("Kernel error: Io error: Input/output error (os error 5)"), 5, "Input/output error"),
        (DeltaError("Generic error: something else"), 1, "unexpected: DeltaError"),
        (FileNotFoundError(2, "No such file or directory", "/x"), 1, "unexpected: FileNotFoundError"),
        (ValueError("bug"), 1, "unexpected: ValueError: bug"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (TerminatedError(), 143, "terminated"),
    ],
)
def test_each_error_has_its_exit_code_and_only_a_defect_has_a_traceback(job, capsys, raised, code, expected):
    job.outcome = raised
    assert cli.main(["compact", "A", "--store", "S", "--json"]) == code
    out, err = capsys.readouterr()
    assert expected in err
    assert json.loads(out)["error"]["exit_code"] == code
    assert ("Traceback" in err) == (code == 1)


@pytest.mark.parametrize(
    ("kind", "code", "expected"), [(InterruptedRunError, 130, "interrupted"), (TerminatedError, 143, "terminated")]
)
def test_interrupted_run_reports_finished_work(job, capsys, kind, code, expected):
    """The report, with the error in it, whatever click makes of Ctrl-C."""
    job.outcome = kind()
    job.outcome.report = _Report()
    job.outcome.add_note("2 of 5 partitions committed")
    assert cli.main(["compact", "A", "--store", "S", "--json"]) == code
    out, err = capsys.readouterr()
    assert err.splitlines()[-1] == f"error: {expected}; 2 of 5 partitions committed"
    report = json.loads(out)
    assert (report["kept"], report["exit_code"], report["error"]["exit_code"]) == (3, code, code)
    assert report["error"]["message"] == f"{expected}; 2 of 5 partitions committed"
    assert cli.main(["compact", "A", "--store", "S"]) == code
    assert capsys.readouterr().out == "kept 3\n"


def test_full_disk_error_names_the_disk_and_its_free_space(job, capsys, tmp_path):
    """By the path of the error, of Spark's text of it, or of what the command writes to."""
    store = str(tmp_path / "not" / "there")
    words = ["compact", "A", "--store", store, "--json"]
    path = str(tmp_path / "f")
    for raised, expected in (
        (OSError(28, "No space left on device", path), {path}),
        (RuntimeError(f"Job aborted: OSError: [Errno 28] No space left on device: '{path}'"), {path}),
        (RuntimeError("java.io.IOException: No space left on device"), {store, tempfile.gettempdir()}),
    ):
        job.outcome = raised
        assert cli.main(words) == errors.ENVIRONMENT
        error = json.loads(capsys.readouterr().out)["error"]
        assert error["path"] in expected
        assert re.fullmatch(r"No space left on device, [\d.]+ \w+ free", error["found"])
        assert "If the store has a generation, vacuum" in error["hint"]


def test_full_disk_error_names_local_folders_of_spark(job, capsys, tmp_path, monkeypatch):
    """Spark's text names no file of its own; the fullest disk of all that are written to is meant."""
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", f"--conf 'spark.local.dir={tmp_path / 'a b'},/c' pyspark-shell")
    assert session.local_folders() == [str(tmp_path / "a b"), "/c"]
    (tmp_path / "a b").mkdir()
    usage = lambda path: types.SimpleNamespace(free=1 if Path(path) == tmp_path / "a b" else 1 << 40)  # noqa: E731
    monkeypatch.setattr(shutil, "disk_usage", usage)
    job.outcome = RuntimeError("java.io.IOException: No space left on device")
    assert cli.main(["compact", "A", "--store", str(tmp_path / "store"), "--json"]) == errors.ENVIRONMENT
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["path"], error["found"]) == (str(tmp_path / "a b"), "No space left on device, 1 B free")


def test_disk_without_inodes_is_reported_as_full(job, capsys, tmp_path, monkeypatch):
    real = os.statvfs
    full = types.SimpleNamespace(f_files=100, f_favail=0)
    monkeypatch.setattr(os, "statvfs", lambda path: full if Path(path) == tmp_path else real(path))
    job.outcome = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "store" / "x"))
    assert cli.main(["compact", "A", "--store", str(tmp_path / "store"), "--json"]) == errors.ENVIRONMENT
    assert json.loads(capsys.readouterr().out)["error"]["found"] == "No space left on device, no inode free"


def test_progress_is_shown_on_request_and_never_on_stdout(job, capsys):
    cli.main(["compact", "A", "--store", "S", "--progress", "--json"])
    out, err = capsys.readouterr()
    assert "phase" in err
    assert json.loads(out)
    cli.main(["compact", "A", "--store", "S"])
    assert capsys.readouterr().err == ""


def test_options_of_spark_end_at_the_name_of_the_job():
    split = submit.split_arguments
    assert split(["compact", "A", "--conf", "x"]) == ([], ["compact", "A", "--conf", "x"])
    spark = ["--master", "local[2]", "--conf", "a=b c", "--verbose", "--name=compact", "--name", "compact"]
    assert split([*spark, "compact", "A"]) == (spark, ["compact", "A"])
    assert split(["--help"]) == ([], ["--help"])
    assert split([]) == ([], [])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["compact", "A", "--store", "S", "--master", "local"], "--master is an option of Spark: it goes before"),
        (["--store", "S", "compact", "A"], "--store is an option of a job: it goes after the job's name"),
        (["--mster", "local", "compact", "A"], "--mster; did you mean --master"),
        (["--conf", "a=b", "--executor-memry", "1g", "verify", "A"], "did you mean --executor-memory"),
    ],
)
def test_a_misplaced_or_unknown_option_is_refused_without_a_session(job, capsys, words, expected):
    _, rest = submit.split_arguments(words)
    assert cli.main(rest) == errors.USAGE
    assert expected in capsys.readouterr().err
    assert not job.seen


@pytest.mark.parametrize("columns", ["80", "120"])
def test_group_help_shows_complete_descriptions(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    assert cli.main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "..." not in out.split("Commands:")[1]
    words = " ".join(out.split())
    for command in cli.lastkey.commands.values():
        assert command.short_help.replace("- ", "-") in words.replace("- ", "-")


def test_settings_of_the_user_override_defaults_and_lists_are_joined(tmp_path):
    (tmp_path / "spark-defaults.conf").write_text("# mine\nspark.ui.enabled = true\nspark.driver.memory 9g\n")
    user = submit.user_options(
        ["--master", "yarn", "--conf", "spark.x=1", "--packages", "g:a:1", "--driver-memory", "4g"],
        {"SPARK_CONF_DIR": str(tmp_path)},
    )
    assert user.master == "yarn"
    assert user.conf["spark.driver.memory"] == "4g"
    ours = {"spark.x": "2", "spark.y": "3 4", "spark.ui.enabled": "false", "spark.jars.packages": "io.delta:d:1"}
    words = submit.launch_arguments(ours, user)
    assert words.startswith("--conf 'spark.y=3 4' --master yarn")
    assert "spark.x=2" not in words
    assert "spark.ui.enabled" not in words
    assert words.endswith("--packages io.delta:d:1,g:a:1 pyspark-shell")


@pytest.mark.parametrize(("error", "lines"), [(KeyboardInterrupt, 0), (ConnectionError, 5)])
def test_ctrl_c_in_a_call_to_the_jvm_has_no_traceback(error, lines, capsys):
    """Py4j logs it so."""
    log = logging.Logger("py4j")
    log.addHandler(LogAboveTheBar())
    try:
        raise error
    except error:
        log.exception("while sending command.")
    assert len(capsys.readouterr().err.splitlines()) == lines


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_cause_no_error(closed, tmp_path):
    """As some launchers start what they start; the first file that is opened would get the number of such a stream."""
    store = tmp_path / "store"
    words = ["compact", ROOT / "examples" / "archive", "--store", store, "--topics", "prices", "--cleanup-policy"]
    command = [sys.executable, "-m", "lastkey", *words, "compact", "--engine", "threads"]
    completed = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    assert [path.name[:2] for path in (store / "segments" / "prices-0").iterdir()] == ["1-"]


@pytest.mark.slow
def test_command_loads_each_kernel_once_and_no_compiler(tmp_path):
    config = ["--config", ROOT / "examples" / "topics.toml"]
    words = ["compact", ROOT / "examples" / "archive", *config, "--engine", "threads", "--store"]
    code = """if True:
        import gc, sys
        from lastkey.jobs.main import main
        assert main("lastkey") == 0
        assert "numba.np.arrayobj" not in sys.modules
        from numba.core.dispatcher import Dispatcher
        layouts = {one.__name__: len(one.signatures) for one in gc.get_objects() if isinstance(one, Dispatcher)}
        print({name: n for name, n in layouts.items() if n > 1}, layouts["encode_bodies"], file=sys.stderr)
    """
    compiled = [sys.executable, "-m", "lastkey", *words, tmp_path / "first"]
    subprocess.run(compiled, cwd=ROOT, check=True, capture_output=True)
    loaded = [sys.executable, "-c", code, *words, tmp_path / "second"]
    completed = subprocess.run(loaded, cwd=ROOT, check=True, capture_output=True, text=True)
    assert completed.stderr == "{} 1\n"


@pytest.mark.parametrize("given", [{"SPARK_CONF_DIR": "{}/conf"}, {"SPARK_HOME": "{}"}])
def test_properties_are_read_as_spark_reads_them(tmp_path, given):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_bytes(
        b"! mine\xff\n=\nspark.master: yarn\nspark.a:b=c\nspark.x   -Da=b -Dc:d\nspark.y = 1 2\nspark.z\n"
    )
    user = submit.user_options([], {name: value.format(tmp_path) for name, value in given.items()})
    read = {"spark.master": "yarn", "spark.a": "b=c", "spark.x": "-Da=b -Dc:d", "spark.y": "1 2", "spark.z": ""}
    assert user.conf == read


def test_report_table_has_aligned_columns():
    columns = TextTable("rows", "partition state records:kept of.n_bytes:size at_ms share none", total="partition")
    rows = [
        {"topic": "a", "partition": 0, "state": "uncleanable", "of": None, "none": 0},
        {
            "topic": "b",
            "partition": 1,
            "state": "clean",
            "records": 1000,
            "of": {"n_bytes": 1024},
            "at_ms": 0,
            "share": 0.5,
        },
    ]
    text = table(columns.headers(), [*map(columns.cells, rows), columns.sums(rows)], total=True).splitlines()
    assert text[0].split() == ["partition", "state", "kept", "size", "at", "ms", "share"]
    assert [line.split()[0] for line in text] == ["partition", text[1], "a-0", "b-1", text[4], "2"]
    assert text[3].endswith("clean        1,000  1.0 KiB  1970-01-01 00:00  50.0 %")
    assert text[5].split() == ["2", "partitions", "1,000", "1.0", "KiB"]
    assert [size(n) for n in (None, 0, 1023, 1024, 5 << 30)] == ["-", "0 B", "1023 B", "1.0 KiB", "5.0 GiB"]


def _script(*arguments, **environment):
    venv = Path(sys.prefix)
    return subprocess.run(
        [ROOT / "spark-submit.sh", *arguments],
        env={**os.environ, "LASTKEY_VENV": str(venv), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_starts_no_jvm(tmp_path):
    completed = _script("--help", JAVA_HOME=str(tmp_path))  # there is none
    assert completed.returncode == 0
    assert "compact" in completed.stdout
    assert _script("--master", "local[1]", "compact", "--help", JAVA_HOME=str(tmp_path)).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["threads", "spark"])
def test_python_files_of_an_archive_are_not_imported(tmp_path, engine):
    """The folder where the command runs: Python looks there for modules first, and so do Spark's workers."""
    archive, executed = tmp_path / "archive", tmp_path / "executed"
    shutil.copytree(ROOT / "examples" / "archive", archive)
    for name in ("random", "json", "numpy", "pyarrow", "pyspark", "lastkey", "socket", "uuid"):
        (archive / f"{name}.py").write_text(f"open({str(executed)!r}, 'a').write(__name__)\nraise ImportError\n")
    words = ("verify", ".", "--engine", engine)
    venv = {"LASTKEY_VENV": sys.prefix}
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONSAFEPATH", "PYTHONPATH")}
    completed = subprocess.run(
        [ROOT / "spark-submit.sh", *words], cwd=archive, env=environment | venv, capture_output=True, check=False
    )
    assert not executed.exists()
    assert completed.returncode == 0, completed.stderr


def _needs_spark(folder):
    """Return a command that has something to compact, and may not do it in threads."""
    archive, config = ROOT / "examples" / "archive", folder / "t.toml"
    config.write_text('[topics.users]\n"cleanup.policy" = "compact"\n[job]\n"engine" = "spark"\n')
    return "compact", str(archive), "--store", str(folder / "store"), "--config", str(config)


@pytest.mark.slow
def test_missing_java_has_exit_code_5_and_names_the_package(tmp_path):
    completed = _script(*_needs_spark(tmp_path), JAVA_HOME=str(tmp_path / "none"))
    assert completed.returncode == errors.ENVIRONMENT, completed.stderr
    assert "apt install openjdk-17" in completed.stderr


def test_an_old_java_is_refused(tmp_path):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    java.chmod(0o755)
    completed = _script(*_needs_spark(tmp_path), JAVA_HOME=str(tmp_path))
    assert completed.returncode == errors.ENVIRONMENT
    assert "Java 8" in completed.stderr


def test_missing_environment_has_exit_code_5(tmp_path):
    completed = _script("--help", LASTKEY_VENV=str(tmp_path))
    assert completed.returncode == errors.ENVIRONMENT
    assert "LASTKEY_VENV" in completed.stderr


SECRET_ARGUMENTS = [
    ["compact", "s3://AKIA:hush@bucket/a", "--store", "S"],
    ["compact", "A", "--store", "s3://AKIA:hush@bucket/s"],
    ["compact", "A", "--store=s3://AKIA:hush@bucket/s", "--json"],
    ["compact", "s3://AKIA:hu/sh@bucket/a"],  # and no store
    ["verify", "s3://bucket/a?secret_key=hush"],
    ["verify", "--store", "S", "--archive", "s3://AKIA:hush@bucket/a", "--json"],
    ["reindex", "hdfs://me:hush@host/a", "--check"],
    ["reindex", "A", "--output", "s3://AKIA:hush@bucket/o"],
    ["inspect", "A", "s3://AKIA:hush@bucket/a"],
    ["inspect", "A", "--output", "s3://AKIA:hush@bucket/o"],
    ["lookup", "A", "--queries", "s3://AKIA:hush@bucket/q.csv", "--output", "o.csv"],
    ["report", "A", "--output", "s3://AKIA:hush@bucket/o.html"],
    ["restore", "--store", "s3://AKIA:hush@bucket/s", "--output", "O"],
    ["vacuum", "s3://AKIA:hush@bucket/s", "--store", "S"],  # click would say which word is too many
    ["s3://AKIA:hush@bucket/a"],
]


@pytest.mark.parametrize("words", SECRET_ARGUMENTS, ids=lambda words: words[0])
def test_error_for_credentials_in_a_uri_does_not_repeat_them(words, capsys):
    assert cli.main(words) == errors.USAGE
    out, err = capsys.readouterr()
    assert "without credentials" in err
    for secret in ("hush", "hu/sh", "AKIA", "me:"):
        assert secret not in out + err
    if "--json" in words:
        assert json.loads(out)["error"]["exit_code"] == errors.USAGE


def test_key_argument_may_look_like_a_uri_with_credentials(capsys):
    for words in (["--key", "http://me:hush@host"], ["--key=http://me:hush@host"]):
        assert cli.main(["inspect", str(ROOT / "examples/archive/orders-0"), *words]) == errors.DONE
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "words",
    [
        ["verify", "arch\udcff"],
        ["lookup", "A", "--offset", "0", "--partition", "\udcff-0"],
        ["inspect", "A", "--key", "\udcff"],
    ],
    ids=lambda words: words[0],
)
def test_arguments_that_are_not_utf8_are_a_usage_error(words, capsys):
    assert cli.main([*words, "--json"]) == errors.USAGE
    out, err = capsys.readouterr()
    assert "\\xff" in json.loads(out)["error"]["message"]
    assert err.endswith("expected a path or a name that is UTF-8, found other bytes\n") and "Traceback" not in err


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["lookup", "--offset", "5"], ["lookup", "--offset", "5", "--json"], ["inspect"], ["inspect", "--json"]]
)
def test_write_failure_of_stdout_is_reported_as_stdout(words):
    """The error names no other disk that has free space. The same holds with --json."""
    arguments = [words[0], "examples/archive" + "/orders-0" * (words[0] == "inspect"), *words[1:]]
    with Path("/dev/full").open("wb") as full:
        completed = subprocess.run(
            [sys.executable, "-m", "lastkey", *arguments],
            check=False,
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (completed.returncode, completed.stderr.count("\n")) == (errors.ENVIRONMENT, 1)
    assert completed.stderr.startswith("error: stdout: No space left on device; ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (  # each try of a task lost its executor
            "Lost task 1.3 (TID 8): ExecutorLostFailure (executor 4 exited) Reason: 137. Diagnostics: [2026]Killed\n.",
            "a worker of Spark ended in the middle of the job: ExecutorLostFailure (executor 4 exited) Reason: 137.",
        ),
        (
            "SparkException: Job 0 cancelled because SparkContext was shut down\n\tat org.apache",
            "Spark ended in the middle of the job: SparkContext was shut down",
        ),
        (
            "IllegalStateException: Cannot call methods on a stopped SparkContext.\nThis stopped",
            "Spark ended in the middle of the job: Cannot call methods on a stopped SparkContext",
        ),
        (
            "Total size of serialized results of 1 tasks (8 KiB) is bigger than spark.driver.maxResultSize (1 KiB)",
            "Spark ended the job: Total size of serialized results of 1 tasks (8 KiB) is bigger than "
            "spark.driver.maxResultSize (1 KiB)",
        ),
    ],
)
def test_spark_failure_or_termination_is_a_one_line_error(job, capsys, text, expected):
    """As those of clusters do in tests/jobs/spark/test_yarn.py."""
    job.outcome = RuntimeError(f"Job aborted\n{text}")
    assert cli.main(["verify", "A"]) == errors.ENVIRONMENT
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {expected}; ")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "  File x\nModuleNotFoundError: No module named 'jobs'\n\tat x",
            "ModuleNotFoundError: No module named 'jobs'",
        ),
        (  # the daemon that forks workers ended too
            f"x\nError from python worker:\n  ModuleNotFoundError: No module named 'y'\nPYTHONPATH was:\n{_NO_DAEMON}",
            "ModuleNotFoundError: No module named 'y'",
        ),
        (
            'x\njava.io.IOException: Cannot run program "/no/python": error=2\n\tat x',
            'Cannot run program "/no/python": ',
        ),
        (
            "x: \nError from python worker:\n  Traceback:\n  /p: No module named pyspark\nPYTHONPATH was:",
            "/p: No module named pyspark",
        ),
        (
            "x: [PYTHON_VERSION_MISMATCH] Python in worker: 3.12, driver: 3.11.\n\tat x",
            "[PYTHON_VERSION_MISMATCH] Python",
        ),
    ],
)
def test_worker_that_cannot_import_lastkey_is_a_one_line_error(job, capsys, text, expected):
    job.outcome = RuntimeError(f"Job aborted\n{text}")
    assert cli.main(["verify", "A"]) == errors.ENVIRONMENT
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: Spark's Python workers cannot run Lastkey: {expected}")
    assert "PYSPARK_PYTHON" in line


def test_module_missing_in_the_driver_is_not_reported_for_workers(job, capsys):
    job.outcome = ModuleNotFoundError("No module named 'x'")
    assert cli.main(["verify", "A"]) == errors.UNEXPECTED
    assert "workers" not in capsys.readouterr().err


def test_unusable_kernel_folder_of_an_executor_is_a_usage_error(job, capsys):
    error = PlaceError("NUMBA_CACHE_DIR=/x: expected Y")
    job.outcome = RuntimeError(f"Job aborted\nlastkey.logformat.errors.PlaceError: {error}\n\tat x")
    assert cli.main(["verify", "A"]) == errors.USAGE
    assert capsys.readouterr().err == f"error: {error}\n"
