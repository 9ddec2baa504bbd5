"""The manifest of a generation as a file: it is read as written, and damage is reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pytest

from lastkey.jobs.errors import BAD_MANIFEST, GenerationError
from lastkey.jobs.store import manifests
from lastkey.jobs.store.manifests import from_json, to_json
from lastkey.jobs.store.rows import Commit, PartitionState, RunRow, arrow_schema, to_arrow, to_checkpoints
from lastkey.logformat import names
from lastkey.udfs.storage import Root, open_root
from tests.builders.errors import raises_kind
from tests.builders.stores import make_commit, row, run_id


def _commit() -> Commit:
    made = make_commit(0, 2, run_id(2), run_id(1))
    state = row(PartitionState, topic="t", partition=0, state="clean", dirty_ratio=0.25, generation=2)
    checkpoint = replace(made.checkpoint, gaps="[[1, 2, 0, 5]]", topic_id=None, cluster_id="é")
    return replace(made, checkpoint=checkpoint, partition_state=state)


@pytest.fixture
def store(tmp_path: Path) -> Root:
    return open_root(str(tmp_path))


def _write(store: Root, commit: Commit) -> Path:
    folder = Path(store.full(commit.folder))
    folder.mkdir(parents=True)
    manifests.write_manifests(store, [commit])
    return folder / "manifest.json"


def checksum(generation: object) -> int:
    """Return CRC-32C over the JSON with sorted names, as STORE.md describes it."""
    return int(google_crc32c.value(json.dumps(generation, sort_keys=True).encode()))


def test_manifest_is_read_as_written(store: Root) -> None:
    for commit in (_commit(), replace(_commit(), partition_state=None)):
        assert from_json(to_json(commit), "m") == commit
    _write(store, _commit())
    assert manifests.read_manifest(store, _commit().folder) == _commit()


def test_a_manifest_has_the_columns_of_the_tables() -> None:
    """Some fields have other names than their columns, which all versions of format 3 read."""
    manifest = json.loads(to_json(_commit()))["generation"]
    assert list(manifest["run"]) == arrow_schema(RunRow).names
    assert "applied_to" in manifest["segments"][0] and "anew" in manifest["run"]


def test_every_flipped_byte_and_truncation_is_detected() -> None:
    data = to_json(_commit())
    for at in range(0, len(data), 7):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 0x01]) + data[at + 1 :]):
            try:
                commit = from_json(damaged, "m")
            except GenerationError as error:
                assert "m: expected" in str(error)
            else:
                assert commit == _commit()  # a bit of what is not looked at, as of the format's number
                assert json.loads(damaged)["generation"] == json.loads(data)["generation"]


def test_different_format_is_refused_and_newer_columns_are_ignored() -> None:
    report = json.loads(to_json(_commit()))
    for other in (2, 4):
        with raises_kind(BAD_MANIFEST, match=f"expected format 3, found {other}"):
            from_json(json.dumps(report | {"format": other}).encode(), "m")
    report["generation"]["checkpoint"] |= {"of_tomorrow": 1}
    report["crc32c"] = checksum(report["generation"])
    assert from_json(json.dumps(report).encode(), "m") == _commit()


@pytest.mark.parametrize("value", ["\0", 2**64, 1.5, None, [], {"a": 1}])
@pytest.mark.parametrize("field", ["checkpoint", "run", "segments", "partition_state"])
def test_value_out_of_the_range_of_a_table_is_a_problem_of_the_manifest(field: str, value: object) -> None:
    """Its checksum is right, because its writer computed it."""
    report = json.loads(to_json(_commit()))
    of = report["generation"][field]
    row = of[0] if field == "segments" else of
    name = {
        "checkpoint": "next_offset",
        "run": "end_offset",
        "segments": "size_bytes",
        "partition_state": "generation",
    }[field]
    for changed in (row, report["generation"]):
        before = dict(changed)
        changed[name if changed is row else field] = value
        report["crc32c"] = checksum(report["generation"])
        data = json.dumps(report).encode()
        try:
            commit = from_json(data, "m")
        except GenerationError as error:
            assert "m: expected" in str(error)
        else:
            to_arrow(RunRow, [commit.run])
            to_checkpoints([commit])
        changed.clear()
        changed.update(before)


def test_the_manifest_of_another_folder_is_refused(store: Root) -> None:
    path = _write(store, _commit())
    other = path.parent.with_name(f"3-{run_id(3)}")
    path.parent.rename(other)
    with raises_kind(BAD_MANIFEST, match="expected the manifest of"):
        manifests.read_manifest(store, f"segments/t-0/{other.name}")


def test_files_that_contradict_the_manifest_are_reported(store: Root) -> None:
    commit = _commit()
    commit = replace(commit, run=replace(commit.run, topic_id=None))
    path = _write(store, commit)
    sizes = {name: size for name, size, _ in manifests.other_files(store, commit)}
    folder = commit.folder
    assert f"{folder}/manifest.json" not in sizes
    assert f"{folder}/{names.LEADER_EPOCH_CHECKPOINT}" in sizes
    path.write_bytes(b"")
    assert (f"{folder}/manifest.json", None, 0) in list(manifests.other_files(store, commit))
    path.unlink()
    assert (f"{folder}/manifest.json", None, None) in list(manifests.other_files(store, commit))


OTHER_PARTITION = f"segments/u-0/2-{run_id(2)}/0.log"


@pytest.mark.parametrize(
    ("row_of", "values"),
    [
        ("segments", {"root": "store", "path": f"../{OTHER_PARTITION}"}),
        ("segments", {"root": "store", "path": f"segments/t-0/../../../{OTHER_PARTITION}"}),
        ("segments", {"root": "store", "path": f"/{OTHER_PARTITION}"}),
        ("segments", {"root": "store", "path": OTHER_PARTITION}),
        ("segments", {"root": "archive", "path": "../other/t-0/00000000000000000000.log"}),
        ("segments", {"root": "archive", "path": "u-0/00000000000000000000.log"}),
        ("segments", {"root": "../other"}),
        ("segments", {"topic": "u"}),
        ("segments", {"key_files": f'[[0, 1, "../{OTHER_PARTITION}", 1, 0]]'}),
        ("checkpoint", {"topic": "../t"}),
        ("run", {"topic": "../t"}),
        ("run", {"topic": "u"}),
        ("run", {"run_id": "0/../../../../other"}),
        ("run", {"back_to": 1, "back_to_run_id": "0/../../../../other"}),
        ("checkpoint", {"back_to": 1, "back_to_run_id": "0/../../../../other"}),
    ],
)
def test_manifest_that_names_files_outside_its_store_is_refused(row_of: str, values: dict[str, object]) -> None:
    """Its checksum is right. Restore would serve files from outside of the store, or another partition's."""
    report = json.loads(to_json(_commit()))
    of = report["generation"][row_of]
    (of[0] if row_of == "segments" else of).update(values)
    report["crc32c"] = checksum(report["generation"])
    with raises_kind(BAD_MANIFEST, match="m: expected"):
        from_json(json.dumps(report).encode(), "m")
