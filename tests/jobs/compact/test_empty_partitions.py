"""Partitions without a record: the store has their log start, log end and side files, and restore writes them. A folder
without a `.log` is no empty partition: it does not show the end of the log.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs.command import cli
from lastkey.jobs.errors import DONE, PROBLEMS
from lastkey.jobs.store.tables import open_state
from tests.builders.archives import offset_checkpoint
from tests.builders.logs import write_partition
from tests.builders.place import Place
from tests.builders.trees import files_in, tree

LOG = "a=1 b=2 || a=3 c=4 || d=5"


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, capsys)


def empty(place: Place, *bases: int, bare: bool = False) -> None:
    """Write segments of 0 bytes; bare: without any other file."""
    if bare:
        for base in bases:
            (place.archive / f"{base:020d}.log").write_bytes(b"")
    else:
        write_partition(place.archive, "||" * (len(bases) - 1), base_offset=bases[0], bases=dict(enumerate(bases)))


def checkpoint(place: Place, name: str, offset: int) -> None:
    offset_checkpoint(place.archive.parent / f"{name}-checkpoint", {"t-0": offset})


def report(place: Place, *words: str) -> dict[str, Any]:
    code, output = place.run(*words, "--json")
    fields: dict[str, Any] = json.loads(output)
    assert fields["exit_code"] == code
    return fields


def restored(place: Place) -> dict[str, Any]:
    """Restore the store, check the output and the store, and return the report."""
    output = place.root / "restored"
    result = report(place, "restore", "--store", str(place.store), "--output", str(output))
    assert place.run("verify", str(output))[0] == DONE
    assert place.run("verify", "--store", str(place.store))[0] == DONE
    return result


def left_out(place: Place, *words: str) -> list[dict[str, Any]]:
    """Restore the store, and return the problems."""
    output = place.root / "part"
    result = report(place, "restore", "--store", str(place.store), "--output", str(output), *words)
    assert result["exit_code"] == (PROBLEMS if result["problems"] else DONE)
    shutil.rmtree(output)
    problems: list[dict[str, Any]] = result["problems"]
    return problems


def empty_500(place: Place) -> None:
    empty(place, 500)


def empty_0(place: Place) -> None:
    empty(place, 0)


def nothing_but_the_log(place: Place) -> None:
    empty(place, 500, bare=True)


def with_its_log_start(place: Place) -> None:
    empty(place, 500)
    checkpoint(place, "log-start-offset", 500)


def several_that_a_cleaner_emptied(place: Place) -> None:
    empty(place, 500, 600, 700, bare=True)
    checkpoint(place, "cleaner-offset", 700)


def a_high_watermark(place: Place) -> None:
    empty(place, 500)
    checkpoint(place, "replication-offset", 500)


SHAPES = [empty_500, empty_0, nothing_but_the_log, with_its_log_start, several_that_a_cleaner_emptied, a_high_watermark]
DELETE = '[topics."*"]\n"cleanup.policy" = "delete"\n"retention.ms" = 1000000000\n'
BLOCKS = '[job]\n"split.by" = "always"\n[topics."*"]\n"cleanup.policy" = "compact"\n'
YIELD = '[topics."*"]\n"cleanup.policy" = "compact"\n"compaction.schedule" = "yield"\n'
OTHERS = {"delete": DELETE, "blocks": BLOCKS, "yield": YIELD}
PAIRS = [pytest.param(shape, "", id=shape.__name__) for shape in SHAPES] + [
    pytest.param(shape, settings, id=f"{shape.__name__}-{name}")
    for name, settings in OTHERS.items()
    for shape in (empty_500, several_that_a_cleaner_emptied)
]


@pytest.mark.parametrize(("shape", "settings"), PAIRS)
def test_empty_partition_is_restored_with_its_end_offset(place: Place, shape: Any, settings: str) -> None:
    shape(place)
    before, config = tree(place.archive.parent), place.root / "settings.toml"
    config.write_text(settings)
    named = ["--config", str(config)] if settings else ["--topics", "t", "--cleanup-policy", "compact"]
    words = ["compact", str(place.archive.parent), "--store", str(place.store), "--engine", "threads", *named]
    bases = [int(path.stem) for path in files_in(place.archive)]
    [first] = report(place, *words)["partitions"]
    assert (first["status"], first["log_start_offset"], first["next_offset"]) == ("cleaned", bases[0], bases[-1])
    for more in ([], ["--force"], ["--sealed", "--force"]):
        [later] = report(place, *words, *more)["partitions"]
        assert (later["status"], later["problem"]) == ("not_due", None)
    assert tree(place.archive.parent) == before
    shutil.move(place.archive.parent, place.root / "gone")
    [partitions] = restored(place)["partitions"]
    assert (partitions["log_start_offset"], partitions["next_offset"]) == (bases[0], bases[-1])
    output = place.root / "restored" / "t-0"
    assert [(int(path.stem), path.stat().st_size) for path in files_in(output)] == [(base, 0) for base in bases]
    lost = (place.archive / "partition.metadata") in before
    assert (output / "partition.metadata").exists() or not lost


def test_later_records_continue_at_the_end_offset_of_an_empty_partition(place: Place) -> None:
    empty(place, 500)
    assert place.compact("--sealed")[0] == DONE
    write_partition(place.archive, LOG, base_offset=500)
    assert place.compact()[0] == DONE
    assert place.generation() == "501:b=2 | 502:a=3 503:c=4 || 504:d=5"
    assert place.run("rollback", "--store", str(place.store), "--generation", "1")[0] == DONE
    assert place.compact()[0] == DONE
    assert place.run("vacuum", "--store", str(place.store), "--grace-hours", "0")[0] == DONE
    assert place.generation() == "501:b=2 | 502:a=3 503:c=4 || 504:d=5"
    [partitions] = restored(place)["partitions"]
    assert (partitions["log_start_offset"], partitions["next_offset"]) == (500, 505)


@pytest.mark.parametrize(
    ("text", "base", "state"),
    [("", 300, "diverged"), ("", 0, "diverged"), ("", 700, "gap"), (LOG, 0, "gap"), (LOG, 510, "gap")],
)
def test_different_log_replacing_an_empty_partition_is_uncleanable(
    place: Place, text: str, base: int, state: str
) -> None:
    empty(place, 500)
    assert place.compact()[0] == DONE
    shutil.rmtree(place.archive)
    write_partition(place.archive, text, base_offset=base)
    code, output = place.compact()
    assert code == PROBLEMS
    assert open_state(str(place.store)).states()["t", 0].state == state, output
    assert place.run("archive-needed", str(place.archive.parent), "--store", str(place.store))[0] == DONE
    assert place.compact("--reset", "t")[0] == DONE
    assert restored(place)["partitions"][0]["next_offset"] == base + (5 if text else 0)


def test_empty_segment_below_the_end_of_the_generation_is_uncleanable(place: Place) -> None:
    """Also where nothing is due, and so no batch is read."""
    place.write(LOG)
    assert place.compact()[0] == DONE
    for path in files_in(place.archive)[2:]:
        path.write_bytes(b"")
    place.capsys.readouterr()
    words = ["compact", str(place.archive.parent), "--store", str(place.store), "--topics", "t"]
    [partitions] = report(place, *words, "--cleanup-policy", "compact")["partitions"]
    expected = "a log that reaches offset 5, as generation 1 did"
    assert (partitions["problem"]["expected"], partitions["problem"]["found"]) == (expected, "one that ends at 4")


def test_empty_segments_without_evidence_of_a_cleaner_are_a_gap(place: Place) -> None:
    """Offsets 500 to 599 were there, or the segment at 600 would not be."""
    empty(place, 500, 600, 700, bare=True)
    write_partition(place.archive.parent / "u-0", LOG)
    words = ["compact", str(place.archive.parent), "--store", str(place.store), "--topics", "*"]
    result = report(place, *words, "--cleanup-policy", "compact")
    assert [(r["topic"], r["status"]) for r in result["partitions"]] == [("t", "uncleanable"), ("u", "cleaned")]
    [problem] = left_out(place)
    assert (problem["kind"], problem["path"]) == ("no_generation", "t-0")
    assert "found one that begins at 600" in problem["found"]
    assert report(place, *words, "--cleanup-policy", "compact", "--set", "gaps=accept")["exit_code"] == DONE
    output = str(place.root / "with the gap")
    result = report(place, "restore", "--store", str(place.store), "--output", output)
    assert (result["problems"], result["partitions"][0]["next_offset"]) == ([], 700)


def test_erase_and_rebuild_state_accept_empty_partitions(place: Place) -> None:
    empty(place, 500)
    assert place.compact()[0] == DONE
    (place.root / "key").write_bytes(b"k" * 32)
    shutil.rmtree(place.store / "state")
    assert place.run("rebuild-state", "--store", str(place.store))[0] == DONE
    erase = ["erase", "--store", str(place.store), "--key", "a", "--hmac-key", str(place.root / "key")]
    assert place.run(*erase, "--engine", "threads")[0] == DONE
    assert place.run("runs", "--store", str(place.store))[0] == DONE
    assert restored(place)["partitions"][0]["next_offset"] == 500
    write_partition(place.archive, LOG, base_offset=500)
    assert place.compact()[0] == DONE
    assert place.generation() == "501:b=2 | 502:a=3 503:c=4 || 504:d=5"  # erased were the keys of the log as it was


# -- folders without a .log


@pytest.mark.parametrize("left", ["partition.metadata", "leader-epoch-checkpoint", "00000000000000000500.snapshot"])
def test_folder_without_a_log_file_is_a_problem(place: Place, left: str) -> None:
    write_partition(place.archive.parent / "u-0", LOG)
    words = ["compact", str(place.archive.parent), "--store", str(place.store), "--topics", "*"]
    write_partition(place.archive, "a=1", base_offset=499)
    for path in files_in(place.archive, "*"):
        if path.name != left:
            path.unlink()
    result = report(place, *words, "--cleanup-policy", "compact")
    assert [(r["topic"], r["status"]) for r in result["partitions"]] == [("t", "uncleanable"), ("u", "cleaned")]
    problem = result["problems"][0]
    assert (problem["kind"], problem["path"], problem["expected"]) == ("gap", "t-0", f"a .log beside {left}")
    code, output = place.run("verify", str(place.archive.parent))
    assert (code, f"expected a .log beside {left}, found none" in output) == (PROBLEMS, True)
    [problem] = left_out(place)
    assert (problem["path"], "expected a .log" in problem["found"]) == ("t-0", True)


def test_folder_without_a_log_file_beside_a_complete_one_is_a_problem(place: Place) -> None:
    """A broker moved the partition to another disk."""
    for disk in ("disk1", "disk2"):
        write_partition(place.archive.parent / disk / "t-0", LOG)
    for path in files_in(place.archive.parent / "disk1" / "t-0", "0*"):
        path.unlink()
    place.archive.rmdir()
    assert place.compact()[0] == DONE
    assert place.run("verify", str(place.archive.parent))[0] == DONE


def test_empty_folder_of_a_new_replica_is_not_a_partition(place: Place) -> None:
    write_partition(place.archive.parent / "u-0", LOG)
    (place.archive / "leader-epoch-checkpoint").write_text("0\n0\n")
    words = ["compact", str(place.archive.parent), "--store", str(place.store), "--topics", "*"]
    result = report(place, *words, "--cleanup-policy", "compact")
    assert [r["topic"] for r in result["partitions"]] == ["u"]
    assert left_out(place) == []


# -- partitions that a restore leaves out


def test_restore_names_each_omitted_partition_of_its_topics(place: Place) -> None:
    """u-1 is not due and was added later than the others; no run compacts v."""
    for name, text in (("t-0", LOG), ("u-0", LOG), ("v-0", LOG)):
        write_partition(place.archive.parent / name, text)
    words = ["compact", str(place.archive.parent), "--store", str(place.store), "--cleanup-policy", "compact"]
    assert report(place, *words, "--topics", "[tu]")["exit_code"] == DONE
    assert left_out(place) == []
    write_partition(place.archive.parent / "u-1", "a=1")
    [problem] = left_out(place)
    assert (problem["kind"], problem["path"]) == ("no_generation", "u-1")
    assert problem["found"] == "none; the archive has 1 segment, 70 B"
    assert report(place, *words, "--topics", "[tu]")["exit_code"] == DONE  # u-1 is not due
    assert left_out(place, "--topics", "t") == []
    output = str(place.root / "restored")
    code, output_text = place.run("restore", "--store", str(place.store), "--output", output)
    assert (code, "problem: u-1: no_generation: expected a generation to restore, found none" in output_text) == (
        3,
        True,
    )
    assert "in the archive, not in the store: v-0: 3 segments, 228 B\n" in output_text
    assert "u-1: 1 segment" not in output_text


def test_restore_names_omitted_partitions_without_the_archive(place: Place) -> None:
    write_partition(place.archive.parent / "t-0", LOG)
    write_partition(place.archive.parent / "u-0", "a=1")
    words = ["compact", str(place.archive.parent), "--store", str(place.store), "--cleanup-policy", "compact"]
    assert report(place, *words, "--topics", "t", "--sealed")["exit_code"] == DONE
    assert report(place, *words, "--topics", "u")["exit_code"] == DONE
    place.archive.parent.rename(place.root / "elsewhere")
    [problem] = left_out(place)
    assert (problem["path"], problem["found"]) == ("u-0", "none; the archive cannot be read")


@pytest.mark.spark
@pytest.mark.slow
def test_spark_reads_and_exports_empty_partitions(place: Place, spark: Any) -> None:
    empty(place, 500)
    write_partition(place.archive.parent / "u-0", LOG)
    words = ["compact", str(place.archive.parent), "--store", str(place.store), "--topics", "*"]
    assert report(place, *words, "--cleanup-policy", "compact")["exit_code"] == DONE
    rows = spark.read.format("kafka_log").option("store", str(place.store)).load().collect()
    assert {row.topic for row in rows} == {"u"}
    output = str(place.root / "exported")
    export = ["export", "--store", str(place.store), "--output", output, "--format", "ndjson"]
    assert cli.main([*export, "--no-progress"]) == DONE
