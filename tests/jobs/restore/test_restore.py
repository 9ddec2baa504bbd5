from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from lastkey.jobs import rollback
from lastkey.jobs.command import failures
from lastkey.jobs.command.cli import main
from lastkey.jobs.command.new_log_directory import CreatedFiles
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RestoreOptions, RollbackOptions
from lastkey.jobs.errors import (
    BAD_LOG_START,
    DONE,
    LOG_DIRECTORY_IN_USE,
    MISSING_FILE,
    MISSING_SIDE_FILE,
    NO_GENERATION,
    NOT_EMPTY,
    PROBLEMS,
    USAGE,
    ConflictError,
    MissingPathError,
    UsageError,
)
from lastkey.jobs.restore import copy_files
from lastkey.jobs.restore import job as restore
from lastkey.jobs.topics import TopicFilter
from lastkey.logformat.side_files.checkpoints import read_offset_checkpoint
from lastkey.udfs.storage import open_root
from tests.builders.errors import raises_kind
from tests.builders.stores import MTIME_MS, StoreMaker
from tests.builders.trees import read_tree

pytestmark = pytest.mark.slow  # whole runs

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "archive"
NOON, DAY = 1_700_049_600_000, 86_400_000  # 2023-11-15
A, B, C = b"a" * 1000, b"b" * 2000, b"c" * 500


@pytest.fixture
def maker(tmp_path):
    return StoreMaker(tmp_path)


@pytest.fixture
def two_generations(maker):
    """t-0 in two generations: a segment of its own, one kept from the first, an archived active one that has grown."""
    maker.archived("t", 0, 200, C + b"grown since")
    first = maker.generation("t", 0, 1, {0: A, 100: B}, archived={200: C})
    maker.generation("t", 0, 2, {0: B}, kept=first[1:2], archived={200: C}, start=5)
    maker.generation("u", 3, 1, {50: A}, end=150, start=50)
    return maker


def _restore(maker, **options):
    options.setdefault("output", str(maker.folder / "out"))
    return restore.run(RestoreOptions(str(maker.store), **options), Silent())


def _checkpoint(folder, name):
    return read_offset_checkpoint((folder / f"{name}-checkpoint").read_bytes(), name)


def test_restore_writes_the_current_generation_with_every_side_file(two_generations):
    before = read_tree(two_generations.folder)
    report = _restore(two_generations)
    out = two_generations.folder / "out"
    assert {
        path: data for path, data in read_tree(two_generations.folder).items() if not path.startswith("out/")
    } == before
    logs = {path: data for path, data in read_tree(out).items() if path.endswith(".log")}
    assert logs == {
        "t-0/00000000000000000000.log": B,
        "t-0/00000000000000000100.log": B,
        "t-0/00000000000000000200.log": C,  # only the bytes that belong to the generation
        "u-3/00000000000000000050.log": A,
    }
    assert (
        out / "t-0" / "00000000000000000100.index"
    ).read_bytes() == b"index 2"  # the generation's, not the older one
    assert {p.name for p in (out / "t-0").iterdir()} >= {
        "00000000000000000300.snapshot", "leader-epoch-checkpoint", "partition.metadata"
    }  # fmt: skip
    for kind in ("log", "index", "timeindex"):
        stat = (out / "t-0" / f"00000000000000000100.{kind}").stat()
        assert stat.st_mtime_ns == (MTIME_MS + 100) * 1_000_000
        assert stat.st_nlink == 1
    assert _checkpoint(out, "recovery-point-offset") == {("t", 0): 300, ("u", 3): 150}
    assert _checkpoint(out, "replication-offset") == {("t", 0): 300, ("u", 3): 150}
    assert _checkpoint(out, "cleaner-offset") == {("t", 0): 290, ("u", 3): 140}
    assert _checkpoint(out, "log-start-offset") == {("t", 0): 5}  # u-3 starts at its first segment
    assert (out / ".kafka_cleanshutdown").read_bytes() == b'{"version":0,"brokerEpoch":-1}'
    assert [(p.topic, p.generation, p.segments, p.from_archive) for p in report.partitions] == [
        ("t", 2, 3, 1),
        ("u", 1, 1, 0),
    ]
    assert report.beyond == ["t-0/00000000000000000200.log: 11 B from offset 300 on"]
    assert "2 partitions" in report.to_text()
    assert report.to_json()["partitions"][0]["next_offset"] == 300


def test_restore_selects_a_generation_and_topics_by_glob(two_generations):
    report = _restore(two_generations, generation=1, topics=TopicFilter(("t*",)))
    logs = [data for path, data in read_tree(two_generations.folder / "out").items() if path.endswith(".log")]
    assert logs == [A, B, C]
    assert [p.generation for p in report.partitions] == [1]
    with pytest.raises(UsageError, match=r"no topic of .* matches x; there are t, u"):
        _restore(two_generations, topics=TopicFilter(("x",)), output=str(two_generations.folder / "out2"))


@pytest.fixture
def three_days(maker):
    """t-0: a generation on each of three days; u-0: one on the third."""
    for day in (1, 2, 3):
        maker.generation("t", 0, day, {0: bytes([day]) * 9}, started_ms=NOON + day * DAY)
    maker.generation("u", 0, 1, {0: A}, started_ms=NOON + 3 * DAY)
    return maker


@pytest.mark.parametrize(
    ("at_ms", "generation"),
    [(NOON + DAY, 1), (NOON + 2 * DAY - 1, 1), (NOON + 2 * DAY, 2), (NOON + 3 * DAY - 1, 2), (NOON + 9 * DAY, 3)],
)
def test_restore_selects_the_generation_that_was_current_at_a_time(three_days, at_ms, generation):
    report = _restore(three_days, as_of=at_ms)
    of_u = {"u": 1} if generation == 3 else {}
    assert {p.topic: p.generation for p in report.partitions} == {"t": generation} | of_u
    log = three_days.folder / "out" / "t-0" / "00000000000000000000.log"
    assert log.read_bytes() == bytes([generation]) * 9
    message = "u-0: left out: it had no generation at "
    assert any(note.startswith(message) for note in report.notes) == (generation < 3)


@pytest.mark.parametrize("back", [-9 * DAY, 9 * DAY])
def test_ambiguous_time_after_a_wrong_clock_is_reported(maker, back):
    """The third run's clock was wrong. Its own time cannot be known, so a time before the latest may be another's."""
    for number, time_ms in ((1, NOON), (2, NOON + DAY), (3, NOON + 2 * DAY + back), (4, NOON + 3 * DAY)):
        maker.generation("t", 0, number, {0: bytes([number]) * 9}, started_ms=time_ms)
    message = "t-0: a clock was wrong: generation "
    for n, (at_ms, doubtful) in enumerate(((NOON + DAY, True), (NOON + 20 * DAY, False))):
        notes = _restore(maker, as_of=at_ms, output=str(maker.folder / f"out{n}")).notes
        assert any(note.startswith(message) for note in notes) == doubtful
    assert not any(message in note for note in _restore(maker).notes)


def test_rollback_applies_from_its_time(three_days):
    rollback.run(RollbackOptions(str(three_days.store), 1), Silent())
    report = _restore(three_days, as_of=NOON + 3 * DAY)
    assert {p.topic: p.generation for p in report.partitions} == {"t": 3, "u": 1}
    report = _restore(three_days, as_of=2**62, output=str(three_days.folder / "now"))
    assert {p.topic: p.generation for p in report.partitions} == {"t": 4, "u": 1}


def test_error_for_a_deleted_generation_names_the_oldest_one(three_days):
    shutil.rmtree(three_days.run_folder("t", 0, 1))
    message = (
        "t-0: generation 1: it or an older one was current at 2023-11-16 12:00:00.000Z, and its files are gone; "
        "expected --generation 2 of 2023-11-17 12:00:00.000Z"
    )
    with raises_kind(NO_GENERATION) as raised:
        _restore(three_days, as_of=NOON + DAY, topics=TopicFilter(("t",)))
    assert message in raised.value.line()
    with raises_kind(NO_GENERATION, match=r"not yet committed at 2023-11-15 .*expected a time from 2023-11-18"):
        _restore(three_days, as_of=NOON, topics=TopicFilter(("u",)))
    assert not (three_days.folder / "out").exists()


def test_deleted_generation_may_have_been_current(three_days):
    """The time of generation 2 is unknown, so it is unknown whether generation 1 was current after its own time."""
    shutil.rmtree(three_days.run_folder("t", 0, 2))
    message = r"generation 2: it or an older one was current at .* expected --generation 1 of .* or --generation 3 of "
    with raises_kind(NO_GENERATION, match=message):
        _restore(three_days, as_of=NOON + DAY, topics=TopicFilter(("t",)))


def test_time_is_parsed_in_common_notations(three_days, capsys):
    words = [
        "restore",
        "--store",
        str(three_days.store),
        "--output",
        str(three_days.folder / "out"),
        "--json",
        "--as-of",
    ]
    assert main([*words, "2023-11-17T13:00"]) == DONE
    assert [p["generation"] for p in json.loads(capsys.readouterr().out)["partitions"]] == [2]
    for more in (["yesterday"], ["2023-11-17", "--generation", "1"], ["2023-11-17", "--full-clean"]):
        assert main([*words, *more]) == USAGE


def test_generation_before_a_reset_is_restored(two_generations):
    two_generations.generation("t", 0, 3, {0: A}, reset=True)
    report = _restore(two_generations, generation=2, topics=TopicFilter(("t",)))
    logs = [data for path, data in read_tree(two_generations.folder / "out").items() if path.endswith(".log")]
    assert logs == [B, B, C]
    assert any(
        "t-0: generation 2 is from before the --reset that started over with generation 3" in n for n in report.notes
    )
    assert "t-0: generation 2 is from before" in report.to_text()
    assert _restore(two_generations, topics=TopicFilter(("t",)), output=str(two_generations.folder / "now")).notes == []


def test_log_start_above_the_end_is_refused(two_generations):
    """An older version committed it; a broker that finds it deletes the log."""
    two_generations.generation("t", 0, 3, {0: A}, start=1_000_000, end=300)
    with raises_kind(BAD_LOG_START, match="t-0, generation 3: expected a log start of at most 300") as raised:
        _restore(two_generations, topics=TopicFilter(("t",)))
    assert raised.value.exit_code == 3
    assert not (two_generations.folder / "out").exists()


def test_restore_requires_files_of_a_moved_archive(two_generations):
    moved = two_generations.folder / "elsewhere"
    two_generations.archive.rename(moved)
    with raises_kind(MISSING_FILE, match=r"t-0/00000000000000000200\.log"):
        _restore(two_generations)
    assert not (two_generations.folder / "out").exists()
    assert len(_restore(two_generations, archive=str(moved)).partitions) == 2


def test_report_lists_archive_records_beyond_the_store(two_generations):
    two_generations.archived("t", 0, 300, A)
    two_generations.archived("new", 0, 0, B)
    report = _restore(two_generations)
    assert report.beyond == [
        "new-0: 1 segment, 2.0 KiB",
        "t-0/00000000000000000200.log: 11 B from offset 300 on",
        "t-0/00000000000000000300.log: 1000 B from offset 300 on",
    ]


def test_non_empty_output_is_refused(two_generations):
    out = two_generations.folder / "out"
    out.mkdir()
    (out / "mine").write_text("x")
    with raises_kind(NOT_EMPTY, match="mine"):
        _restore(two_generations)
    assert read_tree(out) == {"mine": b"x"}
    with raises_kind(NOT_EMPTY, match="a file"):
        _restore(two_generations, output=str(out / "mine"))


def test_path_without_a_store_is_an_error(tmp_path):
    with pytest.raises(MissingPathError, match="a store"):
        restore.run(RestoreOptions(str(tmp_path / "none"), str(tmp_path / "out")), Silent())


@pytest.mark.parametrize("cut", [True, False])
def test_damaged_file_leaves_no_partial_output(two_generations, cut):
    path = two_generations.run_folder("t", 0, 2) / "00000000000000000000.log"
    path.write_bytes(B[:-1] if cut else B[:-1] + b"?")
    with raises_kind(MISSING_FILE, match=r"00000000000000000000\.log") as raised:
        _restore(two_generations)
    assert raised.value.exit_code == 3
    assert ("CRC-32C" in str(raised.value)) is not cut
    assert read_tree(two_generations.folder / "out") == {}


class _Neighbour(Silent):
    """Another process that writes files into the output during a restore."""

    def __init__(self, out):
        self.out = out

    def advance(self, n=1):
        if not (self.out / "t-0").exists():
            return  # u-3 was first; the first segment of t-0 comes here too
        (self.out / "t-0" / "mine").write_bytes(b"x")
        (self.out / "new").mkdir(exist_ok=True)
        (self.out / "new" / "mine too").write_bytes(b"y")


@pytest.mark.parametrize("is_there", [True, False])
def test_failed_restore_removes_only_its_own_files(two_generations, is_there):
    out = two_generations.folder / "not" / "there" / "out"
    if is_there:
        out.mkdir(parents=True)
    path = two_generations.run_folder("t", 0, 1) / "00000000000000000100.log"  # the second segment of t-0
    path.write_bytes(B[:-1] + b"?")
    with raises_kind(MISSING_FILE, match="CRC-32C") as raised:
        restore.run(RestoreOptions(str(two_generations.store), str(out)), _Neighbour(out))
    assert read_tree(out) == {"t-0/mine": b"x", "new/mine too": b"y"}
    assert sorted(p.name for p in out.iterdir()) == ["new", "t-0"]
    assert f"left in {out}: new/mine too, t-0/mine;" in raised.value.line()
    assert "left in" in raised.value.to_json()["message"]

    clean = two_generations.folder / "no" / "neighbour"
    if is_there:
        clean.mkdir(parents=True)
    with raises_kind(MISSING_FILE) as raised:
        _restore(two_generations, output=str(clean))
    assert clean.exists() is clean.parent.exists() is is_there  # and the folders above that it made
    assert "left in" not in raised.value.line()


class _Vacuum(Silent):
    """A vacuum without grace that deletes a generation as soon as the restore has found its files."""

    def __init__(self, folder):
        self.folder = folder

    def start(self, phase, total, unit="partition"):
        shutil.rmtree(self.folder)


def test_files_deleted_during_a_restore_are_a_conflict(two_generations):
    out = two_generations.folder / "out"
    options = RestoreOptions(str(two_generations.store), str(out), generation=1)
    with pytest.raises(ConflictError, match=r"when this run began, found .*No such file"):
        restore.run(options, _Vacuum(two_generations.run_folder("t", 0, 1)))
    assert not out.exists()
    with raises_kind(NO_GENERATION, match="its files are gone"):
        restore.run(options, Silent())


class _Interrupted(Silent):
    """Ctrl-C when the first segment is there."""

    def advance(self, n=1):
        raise KeyboardInterrupt


def test_interrupted_restore_leaves_no_files(two_generations, monkeypatch):
    out = two_generations.folder / "out"
    with pytest.raises(KeyboardInterrupt) as raised:
        restore.run(RestoreOptions(str(two_generations.store), str(out)), _Interrupted())
    assert not out.exists()
    assert failures.interruption_failure(raised.value).line == (
        "interrupted; this run removed what it wrote; run again"
    )

    def again(made):
        raise KeyboardInterrupt

    monkeypatch.setattr(CreatedFiles, "take_back", again)
    with pytest.raises(KeyboardInterrupt) as raised:
        restore.run(RestoreOptions(str(two_generations.store), str(out)), _Interrupted())
    assert read_tree(out)
    assert failures.interruption_failure(raised.value).line == (
        f"interrupted; {out} still holds part of the output: remove it, and run again"
    )


def test_cancelled_restore_stops_writing(tmp_path):
    made = CreatedFiles(open_root(str(tmp_path)))
    assert made.file("a") == "a"
    made.given_up = True
    with pytest.raises(InterruptedError):
        made.file("b")
    assert made.files == ["a"]


def test_generation_with_missing_files_names_complete_ones(two_generations):
    first = two_generations.run_folder("t", 0, 1)
    (first / "00000000000000000000.log").unlink()  # vacuum keeps the .log that generation 2 names
    with raises_kind(NO_GENERATION, match=r"t-0: generation 1: its files are gone .*one of: 2"):
        _restore(two_generations, generation=1, topics=TopicFilter(("t",)))
    with raises_kind(NO_GENERATION, match="generation 7: never committed"):
        _restore(two_generations, generation=7, topics=TopicFilter(("t",)))


def test_missing_index_is_an_error_before_any_write(two_generations):
    (two_generations.run_folder("t", 0, 2) / "00000000000000000200.index").unlink()
    with raises_kind(MISSING_SIDE_FILE, match=r"00000000000000000200\.index"):
        _restore(two_generations)


@pytest.mark.parametrize(
    ("lost", "kind", "helps"),
    [
        ("store/segments/prices-0/*/*.log", MISSING_FILE, "--force --reset prices"),
        ("archive/prices-0/*6632.log", MISSING_FILE, "--force --reset prices --set gaps=accept"),
        ("store/segments/prices-0/*/*0.index", MISSING_SIDE_FILE, "--force"),
    ],
)
def test_missing_file_error_names_the_remedy(lost, kind, helps, tmp_path, capsys):
    """The hint names `compact --force` only for side files: a damaged `.log` makes the partition uncleanable."""
    archive, store, out = (str(tmp_path / name) for name in ("archive", "store", "out"))
    shutil.copytree(EXAMPLE, archive)
    words = ["compact", archive, "--store", store, "--topics", "prices", "--cleanup-policy", "compact"]
    words += ["--engine", "threads"]
    assert main(words) == DONE
    next(tmp_path.glob(lost)).unlink()
    with raises_kind(kind) as raised:
        restore.run(RestoreOptions(store, out), Silent())
    message = raised.value.line().replace("TOPIC,", "prices").replace(" with --set", " --set")
    assert f"compact {helps}" in message
    if kind is MISSING_FILE:
        assert main([*words, "--force"]) == PROBLEMS
    assert main([*words, *helps.split()]) == DONE
    assert restore.run(RestoreOptions(store, out), Silent()).exit_code == DONE
    capsys.readouterr()


@pytest.mark.parametrize("generation", [None, 1])
@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_truncated_index_is_an_error_before_the_first_write(two_generations, kind, generation):
    """A broker believes an index that is empty beside a clean shutdown."""
    for path in two_generations.run_folder("t", 0, generation or 2).glob(f"*.{kind}"):
        path.write_bytes(path.read_bytes()[:-1])
    with raises_kind(NO_GENERATION if generation else MISSING_SIDE_FILE, match=rf"\d{{20}}\.{kind}"):
        _restore(two_generations, generation=generation)
    assert not (two_generations.folder / "out").exists()


@pytest.mark.parametrize("grown", [0, 10])
def test_reflinked_files_have_the_same_bytes(two_generations, monkeypatch, grown):
    def ioctl(target, code, source):  # as FICLONE does: the whole of the other file
        import os

        os.sendfile(target, source, 0, os.fstat(source).st_size)

    monkeypatch.setattr(copy_files.fcntl, "ioctl", ioctl)
    report = _restore(two_generations)
    logs = [data for path, data in read_tree(two_generations.folder / "out").items() if path.endswith(".log")]
    assert logs == [B, B, C, A]
    assert sum(p.reflinked for p in report.partitions) == 4


@pytest.mark.parametrize("other", ["at work", "ended"])
def test_one_of_two_concurrent_restores_into_a_folder_succeeds(two_generations, monkeypatch, other):
    """Both restores find the folder empty. A restore that fails must not remove files that the other one wrote under
    the same names.
    """
    out = two_generations.folder / "out"
    options = RestoreOptions(str(two_generations.store), str(out))
    real = restore._restore_partition if other == "at work" else restore.list_apart

    def meanwhile(*given):
        monkeypatch.setattr(restore, real.__name__, real)
        if other == "at work":  # this one holds the folder
            with raises_kind(LOG_DIRECTORY_IN_USE, match="another run"):
                restore.run(options, Silent())
        else:  # this one has still to begin
            restore.run(options, Silent())
        return real(*given)

    monkeypatch.setattr(restore, real.__name__, meanwhile)
    if other == "at work":
        monkeypatch.setattr(restore, "check_empty", lambda root: None)  # it was empty when the other one looked
        assert len(restore.run(options, Silent()).partitions) == 2
    else:
        with raises_kind(NOT_EMPTY):
            restore.run(options, Silent())
    assert restore.names.CLEAN_SHUTDOWN in read_tree(out)
    assert read_tree(out)["u-3/00000000000000000050.log"] == A
