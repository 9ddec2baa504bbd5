"""Places of keys: all logs of stores and archives against a plain reader, and a key planted in each kind of place."""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from lastkey.jobs.command.config import Config
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.erase.places import Places, add_archive, add_store, appeared_since
from lastkey.jobs.erase.search_store import Sought, search
from lastkey.jobs.store.audits import audit_secret
from lastkey.jobs.store.paths import AUDIT_KEY
from lastkey.jobs.store.tables import open_state
from lastkey.jobs.topics import EVERY_TOPIC, TopicFilter
from lastkey.logformat.primitives.binary_arrays import keyed_hashes
from lastkey.udfs.audit.entries import as_bytes
from lastkey.udfs.key_search.findings import finding_columns
from lastkey.udfs.key_search.key_set import KeySet
from lastkey.udfs.storage import exists, open_root
from tests.builders.logs import START_MS, write_partition
from tests.builders.nights import NightlyArchive
from tests.builders.s3_server import BUCKET, put, s3_server
from tests.builders.workers import InTurn
from tests.reference.log import GZIP, data_batch, decode_log

pytestmark = pytest.mark.slow  # whole runs

KEY = b"person-1"
OTHERS = [b"hot-%d" % n for n in range(4)] + [b"cold-%d" % n for n in range(20)]
DEAD = "9-" + "d" * 32


def searched(
    store: Path | str | None, archive: Path | str | None, keys: list[bytes], topics: TopicFilter = EVERY_TOPIC
) -> tuple[Sought, list[dict[str, Any]]]:
    places, hidden, wanted = Places(), None, KeySet.of(keys)
    if store is not None:
        state = open_state(str(store))
        add_store(places, state, Config(), topics)
        if exists(state.root, AUDIT_KEY):
            hidden = wanted.hidden_by(audit_secret(state))
    if archive is not None:
        add_archive(places, open_root(str(archive)), Config(), topics)
    sought = search(wanted, hidden, places, InTurn(), Silent())
    rows = []
    for table, files in sought.tables():
        for part in table.to_batches():
            columns = finding_columns(part, files) | {"key": pa.array(keys).take(part["key"])}
            rows += pa.table(columns).to_pylist()
    return sought, rows


def draw_history(root: Path, seed: int) -> NightlyArchive:
    """Run some nights by yield over drawn records; leave a dead run, a rollback, and leftovers of a broker."""
    rng, nights = random.Random(seed), NightlyArchive(root)
    nights.settings["segment.bytes"] = 1000
    for night in range(5):
        words = [
            f"{rng.choice(OTHERS).decode()}={'-' if rng.random() < 0.2 else night}" for _ in range(rng.randint(6, 18))
        ]
        codec = rng.choice(["none", "gzip", "snappy", "lz4", "zstd"])
        nights.grow(f"{{codec={codec}}} {' '.join(words)} | {{pid=7 txn}} hot-1=aborted{night} | {{pid=7 abort}}")
        nights.run()
        if night == 3:
            nights.job("rollback", "--generation", "2")
    store, archive = nights.lab().store, root / "archive"
    newest = max((store / "segments" / "t-0").iterdir(), key=lambda path: int(path.name.partition("-")[0]))
    dead = shutil.copytree(newest, newest.with_name(DEAD))
    (dead / "manifest.json").unlink(missing_ok=True)
    (dead / "committed").unlink(missing_ok=True)
    folder = archive / "t-0"
    first = folder / "00000000000000000000.log"
    shutil.copy(first, folder / "00000000000000000000.log.deleted")
    shutil.copytree(folder, archive / f"t-0.{'a' * 32}-delete")
    (archive / "deep" / "er" / "still" / "more" / "t-1").mkdir(parents=True)
    shutil.copy(first, archive / "deep" / "er" / "still" / "more" / "t-1")
    return nights


def plainly_read(*roots: Path) -> list[tuple[str, int, bytes, bool]]:
    """Return (path, offset, key, tombstone) of every record in every log, by the plain reader."""
    out = []
    for root in roots:
        for path in sorted(root.rglob("*.log*")):
            for batch in decode_log(path.read_bytes()):
                if not batch.control:
                    out += [(str(path), r.offset, r.key, r.value is None) for r in batch.records]
    return out


@pytest.mark.parametrize("seed", range(2))
def test_search_finds_every_record_of_the_generations_and_the_archive(tmp_path: Path, seed: int) -> None:
    nights = draw_history(tmp_path, seed)
    store, archive = nights.lab().store, tmp_path / "archive"
    wanted = OTHERS[::2]
    sought, rows = searched(store, archive, wanted)
    records = plainly_read(store, archive)
    record_rows = [r for r in rows if r["searched_as"] == "records"]
    assert sorted((f"{r['root']}/{r['path']}", r["offset"], r["key"], r["tombstone"]) for r in record_rows) == sorted(
        record for record in records if record[2] in wanted
    )
    assert {r["certainty"] for r in record_rows} == {"found"}
    states = {(r["generation"], r["state"]) for r in record_rows if r["root"] == str(store)}
    assert {state for _, state in states} == {"current", "older", "dead"}
    assert {state for generation, state in states if generation == 9} == {"dead"}
    assert {r["state"] for r in record_rows if r["root"] == str(archive)} == {"", "deleted", "delete"}
    assert {r["topic"] for r in record_rows} == {"t"} and {r["partition"] for r in record_rows} == {0, 1}
    # every other problem is that of the dead run, whose key files no manifest vouches for
    assert all(DEAD in p.path and p.path.endswith(".keys") for p in sought.problems), sought.problems
    _check_hashes(rows, records, store, wanted)
    assert appeared_since(sought.places, [open_root(str(store)), open_root(str(archive))]) == []


def _check_hashes(rows: list[dict[str, Any]], records: list[Any], store: Path, wanted: list[bytes]) -> None:
    """Check that key files hold keys of records at or above the offset in their name, and filters no more than logs."""
    in_log = {(path, key) for path, _, key, _ in records}
    filters = [r for r in rows if r["searched_as"] == "filter"]
    assert filters
    for row in filters:
        log = f"{row['root']}/{row['path'].removesuffix('.filter')}.log"
        assert (log, row["key"]) in in_log and row["certainty"] == "may"
    expected = {
        (str(path), key) for path in store.rglob("*.filter") for key in wanted
        if (str(path.with_suffix(".log")), key) in in_log
    }  # fmt: skip
    assert {(f"{r['root']}/{r['path']}", r["key"]) for r in filters} == expected  # a filter loses no key
    key_files = list(store.rglob("*.keys"))
    assert key_files
    for path in key_files:
        held = {r["key"] for r in rows if f"{r['root']}/{r['path']}" == str(path)}
        above = {key for _, offset, key, _ in records if offset >= int(path.stem)}
        assert held <= above & set(wanted)
        assert len([r for r in rows if f"{r['root']}/{r['path']}" == str(path)]) == len(held)
    assert any(r["searched_as"] == "key file" for r in rows)


# -- a key planted in one place of a store that does not hold it


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a store and an archive that never held KEY."""
    root = tmp_path_factory.mktemp("clean")
    draw_history(root, 1)
    store = root / "store"
    for path in (store / "segments" / "t-0" / DEAD).glob("*.keys"):
        path.unlink()  # a missing file is a problem of its own
    keys = pa.table({"source": ["a"], "topic": ["t"], "key": pa.array([b"hot-1"], pa.binary())})
    write_deltalake(str(store / "state" / "audit_keys"), keys)
    audit_secret(open_state(str(store)))
    return root


def make_log(codec: int) -> bytes:
    return data_batch(5000, [(START_MS, KEY, b"v" * 300)], codec=codec).data


def _run_folder(store: Path) -> Path:
    return sorted(path for path in (store / "segments" / "t-0").iterdir() if path.name != DEAD)[0]


def _in_a_log(path: Callable[[Path], Path]) -> Callable[[Path], Path]:
    def plant(root: Path) -> Path:
        target = path(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(make_log(GZIP))
        return target

    return plant


def _bytes(path: str, data: bytes = b"xx" + KEY + b"yy") -> Callable[[Path], Path]:
    return _in_bytes(lambda root: root / path, data)


def _in_bytes(path: Callable[[Path], Path], data: bytes) -> Callable[[Path], Path]:
    def plant(root: Path) -> Path:
        path(root).parent.mkdir(parents=True, exist_ok=True)
        path(root).write_bytes(data)
        return path(root)

    return plant


def _old_version(root: Path) -> Path:
    """Put the key into a version of a table, and rewrite the table without it."""
    folder, before = root / "store" / "state" / "audit_keys", set(_parquets(root))
    rows = pq.read_table(sorted(before)[0])
    write_deltalake(
        str(folder), pa.table({"source": ["a"], "topic": ["t"], "key": pa.array([KEY], pa.binary())}), mode="overwrite"
    )
    [planted] = set(_parquets(root)) - before
    write_deltalake(str(folder), rows, mode="overwrite")
    return planted


def _old_version_of_anybody(root: Path) -> Path:
    """Put the key into a table of a user's, whose files are compressed, and rewrite the table without it."""
    folder = root / "archive" / "exports" / "people"
    write_deltalake(str(folder), pa.table({"topic": ["before", KEY.decode(), "behind"], "n": [1, 2, 3]}))
    [planted] = folder.glob("*.parquet")
    for log in (folder / "_delta_log").iterdir():
        log.write_text(log.read_text().replace(KEY.decode(), "person-2"))  # its statistics, another place
    write_deltalake(str(folder), pa.table({"topic": ["somebody-else"], "n": [1]}), mode="overwrite")
    return planted


def _in_statistics(root: Path) -> Path:
    """Write it to a table as the largest value of a column, and delete the file of that version."""
    folder = root / "archive" / "exports" / "people"
    write_deltalake(str(folder), pa.table({"name": ["somebody-else", KEY.decode()]}))
    next(folder.glob("*.parquet")).unlink()
    return next((folder / "_delta_log").glob("*.json"))


def _in_a_folders_name(root: Path) -> Path:
    folder = root / "store" / "exports"
    write_deltalake(str(folder), pa.table({"name": [KEY.decode()], "n": [1]}), partition_by=["name"])
    shutil.rmtree(folder / "_delta_log")
    return next(folder.rglob("*.parquet"))


def _parquets(root: Path) -> list[Path]:
    return list((root / "store" / "state" / "audit_keys").glob("*.parquet"))


def _hidden(root: Path) -> Path:
    """Put the keyed hash of the key into the table of records."""
    path = root / "store" / "state" / "audit_entries" / "x.parquet"
    path.parent.mkdir(exist_ok=True)
    keys = pa.array([b"hot-1", KEY], pa.binary())
    hashed = as_bytes(keyed_hashes(keys, audit_secret(open_state(str(root / "store")))), keys)
    pq.write_table(pa.table({"key": hashed, "topic": ["t", "t"]}), path)
    return path


def _log(path: str) -> Callable[[Path], Path]:
    return _in_a_log(lambda root: root / f"{path}/{LOG}")


LOG = "00000000000000009000.log"
MARK = "b" * 32
PLACES: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "archived segment": (_log("archive/t-0"), "found", ""),
    "swap": (_in_a_log(lambda root: root / f"archive/t-0/{LOG}.swap"), "found", "swap"),
    "cleaned": (_in_a_log(lambda root: root / f"archive/t-0/{LOG}.cleaned"), "found", "cleaned"),
    "copy": (_in_a_log(lambda root: root / f"archive/t-0/{LOG}.bak"), "found", "bak"),
    "stray": (_log(f"archive/t-0.{MARK}-stray"), "found", "stray"),
    "future": (_log(f"archive/t-0.{MARK}-future"), "found", "future"),
    "tiered": (_in_a_log(lambda root: root / "archive/t-0-abc/00000000000000009000-x_y.log"), "found", ""),
    "no partition's folder": (_log("archive/odd"), "found", ""),
    "generation": (_in_a_log(lambda root: _run_folder(root / "store") / LOG), "found", "older"),
    "dead run": (_log(f"store/segments/t-0/{DEAD}"), "found", "dead"),
    "waiting segment": (_log(f"store/segments/t-0/{DEAD}.77"), "found", "dead"),
    "old version of a table": (_old_version, "found", "older"),
    "a value in an old version of a user's table": (_old_version_of_anybody, "found", ""),
    "statistics in the log of a user's table": (_in_statistics, "may", ""),
    "partition of a user's table": (_in_a_folders_name, "found", ""),
    "Parquet that cannot be read": (_bytes("archive/exports/torn.parquet"), "may", ""),
    "hidden key": (_hidden, "found", "unknown"),
    "stray file of the archive": (_bytes("archive/notes.txt"), "may", ""),
    "file in a partition's folder": (_bytes("archive/t-0/core.1234"), "may", ""),
    "stray file of the store": (_bytes("store/old/notes.tmp"), "may", ""),
    "temporary file of a run": (_bytes(f"store/segments/t-0/{DEAD}/x.tmp"), "may", "dead"),
    "unknown file of state": (_bytes("store/state/dump.json"), "may", ""),
    "no batch at all": (_bytes(f"archive/t-0/{LOG}"), "may", ""),
}


@pytest.mark.parametrize("place", PLACES)
def test_search_finds_a_key_in_each_kind_of_file(clean: Path, tmp_path: Path, place: str) -> None:
    root = shutil.copytree(clean, tmp_path / "root")
    plant, certainty, state = PLACES[place]
    path = plant(root)
    _, rows = searched(root / "store", root / "archive", [b"nobody", KEY])
    assert {(f"{r['root']}/{r['path']}", r["certainty"], r["state"], r["key"]) for r in rows} == {
        (str(path), certainty, state, KEY)
    }


def test_erased_key_is_absent_also_for_other_tools(clean: Path) -> None:
    sought, rows = searched(clean / "store", clean / "archive", [KEY])
    assert (rows, sought.problems) == ([], [])
    assert KEY not in {key for _, _, key, _ in plainly_read(clean / "store", clean / "archive")}
    for path in clean.rglob("*"):
        if path.is_file():
            assert KEY not in path.read_bytes(), path
    for path in (clean / "store" / "state").rglob("*.parquet"):
        assert KEY.decode() not in str(pq.read_table(path).to_pydict()), path
    opened = {f"{file.root}/{file.path}" for file in sought.places.files}
    others = [path for path in clean.rglob("*") if path.is_file() and str(path) not in opened]
    assert {".facts", ".json", ".index", ".timeindex", ".txnindex", ".snapshot", ".key"} <= {p.suffix for p in others}
    for path in others:  # files that are not opened have none of these keys
        assert not re.search(rb"hot-[0-9]|cold-[0-9]", path.read_bytes()), path


@pytest.mark.slow  # a server of its own
def test_search_of_a_store_in_a_bucket_equals_that_on_a_disk(clean: Path) -> None:
    wanted, names = [b"hot-1", b"cold-3", KEY], ("path", "key", "offset", "state", "certainty")
    here = searched(clean / "store", clean / "archive", wanted)
    with s3_server():
        for name in ("store", "archive"):
            put(clean / name, f"{BUCKET}/{name}")
        there = searched(f"{BUCKET}/store", f"{BUCKET}/archive", wanted)
    assert [[r[n] for n in names] for r in there[1]] == [[r[n] for n in names] for r in here[1]] and len(here[1]) > 20
    assert there[0].problems == here[0].problems == []
    assert there[0].places.without_keys == here[0].places.without_keys


def test_topics_option_excludes_other_topics_with_a_note(clean: Path) -> None:
    sought, rows = searched(clean / "store", clean / "archive", [b"hot-1"], TopicFilter(("other",)))
    assert {(r["topic"], r["searched_as"]) for r in rows} == {(None, "table")}  # tables belong to no topic
    assert sought.places.left_out > 20 and sought.places.topics == {"t"}


def test_damage_and_missing_hash_keys_are_reported(clean: Path, tmp_path: Path) -> None:
    root = shutil.copytree(clean, tmp_path / "root")
    store = root / "store"
    secrets = [p for p in store.rglob("hash.key") if list(p.parent.glob("*.filter"))]
    lost = max(secrets, key=lambda path: int(path.parent.name.partition("-")[0]))  # no later generation has it too
    key_file = next(path for path in store.rglob("*.keys") if path.parent != lost.parent)
    data = bytearray(key_file.read_bytes())
    data[3] ^= 1
    key_file.write_bytes(data)
    lost.unlink()
    log = next(
        path for path in store.rglob("*.log") if path.with_suffix(".filter").exists() and path.parent != lost.parent
    )
    log.unlink()
    (root / "archive" / "pipe").symlink_to("nowhere")
    (root / "archive" / "t-0" / "00000000000000009000.log").mkdir()
    sought, _ = searched(store, root / "archive", [KEY])
    problems = {(p.path.removeprefix(f"{root}/"), p.kind, p.found) for p in sought.problems}
    named = {path: (kind, found) for path, kind, found in problems}
    assert named[str(key_file.relative_to(root))][0] == "readback"
    assert any(path.startswith(str(lost.parent.relative_to(root))) and found == "none" for path, _, found in problems)
    assert named[str(log.with_suffix(".filter").relative_to(root))][0] == "side_file"
    assert named["archive/pipe"] == ("unreadable", "a broken link")


def test_unusual_names_and_link_cycles_are_visited_once_or_reported(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    (archive / "a" / "b").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "notes").write_bytes(KEY)
    (archive / "new\nline").write_bytes(KEY)
    (archive / "a" / "b" / "up").symlink_to("../..")
    (archive / "a" / "again").symlink_to("b")
    (archive / "linked").symlink_to("../outside")
    os.mkfifo(archive / "a" / LOG)
    (archive / "a" / os.fsdecode(b"bad\xff")).write_bytes(KEY)
    sought, rows = searched(None, archive, [KEY])
    assert [r["path"] for r in rows] == ["linked/notes", "new\nline"]
    assert {(Path(p.path).name, p.found) for p in sought.problems} == {("a", "1 that are not"), (LOG, "a named pipe")}


def test_files_created_or_changed_during_the_search_are_reported(clean: Path, tmp_path: Path) -> None:
    root = shutil.copytree(clean, tmp_path / "root")
    places, archive = Places(), open_root(str(root / "archive"))
    add_archive(places, archive, Config(), EVERY_TOPIC)
    write_partition(root / "archive" / "new-0", "a=1")
    with (root / "archive" / "t-0" / "00000000000000000000.log").open("ab") as file:
        file.write(b"more")
    problems_by_file = {(p.path.rpartition("/")[2], p.found) for p in appeared_since(places, [archive])}
    assert {
        ("00000000000000000000.log", "a new file"),
        ("00000000000000000000.log", "another size or time"),
    } <= problems_by_file


def test_logs_are_searched_without_tables(clean: Path, tmp_path: Path) -> None:
    store = shutil.copytree(clean / "store", tmp_path / "store")
    shutil.rmtree(store / "state")
    before = [r for r in searched(clean / "store", None, [b"hot-1"])[1] if r["searched_as"] == "records"]
    sought, rows = searched(store, None, [b"hot-1"])
    assert len([r for r in rows if r["searched_as"] == "records"]) == len(before) > 3
    assert {r["state"] for r in rows} == {"unknown"} and sought.problems[0].expected == "which generations are current"
