"""Copies of a log for tests of `merge`: a drawn log, its copies, some compacted, and drawn damage."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from lastkey.jobs.command.config import Config, parse_config
from lastkey.jobs.command.options import CompactOptions, MergeOptions, VerifyOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RestoreOptions
from lastkey.jobs.compact import job as compact
from lastkey.jobs.merge import job as merge
from lastkey.jobs.merge.report import MergeReport
from lastkey.jobs.restore import job as restore
from lastkey.jobs.verify import job as verify
from tests.builders.archives import borders
from tests.builders.logs import START_MS, write_partition
from tests.builders.trees import files_in

CONFIG = parse_config({"job": {"engine": "threads"}})
FOLDER = "t-0"
HEADER = 61
LENGTH, OFFSET_AND_LENGTH = slice(8, 12), slice(0, 12)


def run_merge(archives: list[Path] | Path, output: Path, config: Config = CONFIG, **given: object) -> MergeReport:
    """Merge with threads."""
    uris = [str(path) for path in archives] if isinstance(archives, list) else [str(archives)]
    return merge.run(MergeOptions(uris, str(output), config=config, **given), Silent())  # type: ignore[arg-type]


def drawn_text(rng: random.Random, segments: int = 5, batches: int = 8) -> str:
    """Return a log as text: keys that come again, tombstones, transactions of several producers, leader changes."""
    parts, leader, in_transaction = [], rng.randrange(3), set[int]()
    for _ in range(segments):
        of_segment = []
        for _ in range(rng.randint(3, batches)):
            leader += rng.choice((0, 0, 0, 0, 0, 1, 2))
            pid = rng.choice((-1, -1, 7, 8, 9))
            if pid in in_transaction and rng.random() < 0.4:
                in_transaction.discard(pid)
                of_segment.append(f"{{pid={pid} {rng.choice(('commit', 'abort'))} leader={leader}}}")
                continue
            words = [f"leader={leader}", f"codec={rng.choice(('none', 'gzip', 'lz4'))}"]
            if pid >= 0:
                words += [f"pid={pid}", "txn"]
                in_transaction.add(pid)
            records = [
                f"k{rng.randrange(12)}={'-' if rng.random() < 0.15 else 'v' * rng.randint(0, 40)}"
                for _ in range(rng.randint(1, 5))
            ]
            of_segment.append(f"{{{' '.join(words)}}} {' '.join(records)}")
        parts.append(" | ".join(of_segment))
    closed = " | ".join(f"{{pid={pid} commit leader={leader}}}" for pid in sorted(in_transaction))
    return " || ".join(parts) + (f" | {closed}" if closed else "")


def compacted(source: Path, target: Path) -> Path:
    """Write a log directory as our cleaner leaves it."""
    config = parse_config({"defaults": {"cleanup.policy": "compact"}, "job": {"engine": "threads"}})
    store = target.with_name(f"{target.name}-store")
    options = CompactOptions(str(source), str(store), now_ms=START_MS + 10**9, config=config, force=True, sealed=True)
    assert compact.run(options, Silent()).exit_code == 0
    restore.run(RestoreOptions(str(store), str(target), config=config), Silent())
    shutil.rmtree(store)
    return target


def drawn_log(root: Path, rng: random.Random) -> tuple[Path, Path]:
    """Write a drawn log directory, and the same as a cleaner leaves it; return both."""
    whole = root / "whole"
    (whole / FOLDER).mkdir(parents=True)
    write_partition(whole / FOLDER, drawn_text(rng), index_interval_bytes=200)
    return whole, compacted(whole, root / "compacted")


@dataclass(frozen=True)
class StoredBatch:
    """Bytes of a batch, and their position before the damage."""

    file: str
    position: int
    data: bytes


Batches = dict[tuple[int, int], StoredBatch]  # by first and last offset


def read_batches(directory: Path) -> Batches:
    """Return the batches of a log directory by first and last offset."""
    out = {}
    for log in files_in(directory / FOLDER):
        data = log.read_bytes()
        ends = borders(data)
        for start, end in zip([0, *ends], ends, strict=False):
            base = int.from_bytes(data[start : start + 8], "big")
            last = base + int.from_bytes(data[start + 23 : start + 27], "big")
            assert (base, last) not in out
            out[base, last] = StoredBatch(log.name, start, data[start:end])
    return out


def intact(directory: Path, batches: Batches) -> set[tuple[int, int]]:
    """Return the batches whose bytes are unchanged at their position, without those that nothing distinguishes from
    the value of a damaged record: the length before them is lost, and so is the offset after them.
    """
    if not (directory / FOLDER).exists():
        return set()
    files = {path.name: path.read_bytes() for path in (directory / FOLDER).glob("*.log")}

    def is_there(b: StoredBatch, field: slice = slice(None)) -> bool:
        return files.get(b.file, b"")[b.position : b.position + len(b.data)][field] == b.data[field]

    in_order = sorted(batches.items(), key=lambda one: (one[1].file, one[1].position))
    out = set()
    for i, (key, b) in enumerate(in_order):
        before, after = (in_order[n][1] if 0 <= n < len(in_order) else b for n in (i - 1, i + 1))
        begins_lost = before.file == b.file and not is_there(before, LENGTH)
        if is_there(b) and not (begins_lost and after.file == b.file and not is_there(after, OFFSET_AND_LENGTH)):
            out.add(key)
    return out


@dataclass(frozen=True)
class Original:
    """Batches of each copy before the damage, and those that are still there."""

    batches: list[Batches]
    kept: list[set[tuple[int, int]]]


def judge(whole: Batches, copies: Original, report: MergeReport, out: Path, tally: Counter[str]) -> str:
    """Return the fault of a merged log; "" if there is none.

    Each batch that a copy still has must be there: as it was written if an undamaged copy has it so, else one of those
    with the most records. No other batch may be where a copy has one.
    """
    (partition,) = report.partitions
    if partition.refused:
        return f"refused: {[str(p) for p in partition.problems]}"
    batches, lost = read_batches(out), 0
    existing = sorted(set().union(*copies.kept))
    for key in sorted(whole.keys() | batches.keys()):
        candidates = {b[key].data for b, kept in zip(copies.batches, copies.kept, strict=True) if key in kept}
        data = batches[key].data if key in batches else None
        if key in whole and whole[key].data in candidates:
            best = {whole[key].data}
        else:
            most = max(map(_records, candidates), default=0)
            best = {candidate for candidate in candidates if _records(candidate) == most}
        if best and data not in best:
            return f"offsets {key}: {'missing' if data is None else 'another batch'}"
        if not best and data is not None and key in whole:
            had = {_without_epoch(b[key].data) for b in copies.batches if key in b}
            if _without_epoch(data) not in had:
                return f"offsets {key}: other bytes than any copy had"
        elif not best and data is not None and any(key[0] <= last and first <= key[1] for first, last in existing):
            return f"offsets {key}: a batch that no copy had"
        lost += not best
    tally["batches that no copy had"] += lost
    tally["complete logs"] += not lost
    checked = verify.run(VerifyOptions(archive=str(out), config=CONFIG), Silent())
    return "" if lost or not checked.exit_code else f"verify: {[str(p) for p in checked.problems][:3]}"


def _records(data: bytes) -> int:
    return int.from_bytes(data[57:61], "big")


def _without_epoch(data: bytes) -> bytes:
    return data[:12] + data[16:]  # no checksum covers it


def damage(directory: Path, rng: random.Random) -> str:
    """Damage a copy in a drawn way; return what was done."""
    folder = directory / FOLDER
    if not folder.exists():
        return "nothing left"
    logs = [log for log in sorted(folder.glob("*.log")) if log.stat().st_size]
    if not logs:
        return "nothing left"
    log = rng.choice(logs)
    data = bytearray(log.read_bytes())
    kind = rng.choice(_KINDS)
    if kind == "flip":
        at = rng.randrange(len(data))
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "header":
        start = rng.choice([0, *borders(bytes(data))[:-1]]) if _is_whole(data) else 0
        at = start + rng.randrange(min(HEADER, len(data) - start))
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "prefix":  # the fields that no checksum covers
        start = rng.choice([0, *borders(bytes(data))[:-1]]) if _is_whole(data) else 0
        at = start + rng.randrange(min(17, len(data) - start))
        data[at] ^= 1 << rng.randrange(8)
    elif kind in ("zeros", "noise"):
        at = rng.randrange(len(data))
        n = min(rng.choice((1, 16, 512)), len(data) - at)
        data[at : at + n] = bytes(n) if kind == "zeros" else rng.randbytes(n)
    elif kind == "cut":
        log = logs[-1]
        data = bytearray(log.read_bytes())
        at = rng.randrange(len(data))
        del data[at:]
    elif kind == "cut inside":
        at = rng.randrange(len(data))
        del data[at:]
    elif kind == "lost segment":
        for path in folder.glob(f"{log.stem}.*"):
            if path.suffix != ".snapshot":
                path.unlink()
        return f"{kind} {log.name}"
    elif kind == "lost indexes":
        for path in [*folder.glob("*.index"), *folder.glob("*.timeindex"), *folder.glob("*.txnindex")]:
            path.unlink()
        return kind
    elif kind in ("lost epochs", "bad epochs"):
        path = folder / "leader-epoch-checkpoint"
        if kind == "lost epochs":
            path.unlink(missing_ok=True)
        elif path.exists():
            path.write_bytes(rng.choice((b"0\n1\n0 0\n", b"", rng.randbytes(20), b"0\n2\n3 5\n4 17\n")))
        return kind
    elif kind == "lost partition":
        shutil.rmtree(folder)
        return kind
    log.write_bytes(data)
    return f"{kind} {log.name} {at}"


_KINDS = (
    "flip", "flip", "header", "header", "prefix", "prefix", "zeros", "noise", "cut", "cut inside", "lost segment",
    "lost indexes", "lost epochs", "bad epochs", "lost partition",
)  # fmt: skip


def _is_whole(data: bytearray) -> bool:
    try:
        return borders(bytes(data))[-1] == len(data)
    except Exception:  # damaged before
        return False
