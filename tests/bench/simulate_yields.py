"""Bytes read and written for each new byte, against space used: `python -m tests.bench.simulate_yields`.

A log of `keys` live keys, one record of 100 bytes each, gets 5 % new records a night, for 60 nights. Each key's last
record is followed exactly; a segment's dead records are those that are no key's last one. Segments hold 1 / 40 of the
live records. *Skewed*: 90 % of the writes go to 2 % of the keys; *uniform*: all keys alike. Hot keys lie anywhere.

Counted as Lastkey's job counts, for both rules: new bytes are read twice (scan with checksums, cleaning); what survives
is written and read back; a run that takes the whole log reads clean segments twice too. A run by yield reads a segment
once, because its facts spare the scan. For comparison, Kafka's own cleaner (`kafka`): it reads new bytes twice and
clean ones once, checks nothing and reads nothing back. Filters and key files are counted for runs by yield: 2 bytes a
record and 0.5 % of the segment read for each segment, and as much written with each new segment. 16 bytes are written
for each distinct new key. A run that rewrites a segment reads them once, for all runs since the least recently cleaned
of its segments.

Space is the mean, over the nights, of all bytes after the night's run, new ones that wait included, divided by the live
ones. Ours is swept by the dirty ratio and the least yield, the broker's by its dirty ratio, each over whole cycles. For
comparison, the broker's I/O at the same space is taken from the straight line between its two neighbouring points. A
broker that alternates between the two points reaches this I/O. Logs begin clean, with their hot keys anywhere in them;
`settled` skips 60 nights first.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lastkey.udfs.yields.schedule import READS, READS_OF_ALL, WRITES, ScheduleLimits, Segments, choose

RECORD = 100  # bytes
SEGMENTS = 40  # segments with the live records at the start
NIGHTS = 60
NEW = 0.05
PARTS = ("new", "rewrites", "filters", "keys")
RATIOS = (0.04, 0.08, 0.12, 0.16, 0.2, 0.3, 0.5)  # min.cleanable.dirty.ratio
MIN_YIELDS = (0.1, 0.2, 0.3, 0.5)
READS_OF_NEW = 2  # scan and clean
FILTER_BYTES = 2.0  # size of a key filter for each record
FACTS_SHARE = 0.005  # bytes of a segment's facts, for each of its own
HASH_BYTES = 16.0  # size of a key file for each distinct new key
PERIODS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30)  # nights between two cleanings of the broker's
SEED = 1
Night = Callable[[], np.ndarray]
Draw = Callable[[np.random.Generator, int], Night]


@dataclass(frozen=True)
class Rule:
    """Rule of a run: when it is due, and which segments it rewrites."""

    min_dirty_ratio: float
    min_yield: float | None  # None: the whole log, as a broker
    segment_bytes: int
    reads_of_all: int = READS_OF_ALL
    writes: int = WRITES


@dataclass(frozen=True)
class Measured:
    """I/O for each new byte and mean space for each live byte."""

    io: float
    space: float
    parts: np.ndarray  # float64[4]: of PARTS
    segments: int  # most at a time


def skewed(rng: np.random.Generator, keys: int) -> Night:
    """Return a function that draws a night's keys: nine of ten from 2 % of them, which lie anywhere."""
    names = rng.permutation(keys).astype(np.int32)
    n, hot = int(keys * NEW), keys // 50

    def night() -> np.ndarray:
        cold = rng.integers(hot, keys, n)
        return names[np.where(rng.random(n) < 0.9, rng.integers(0, hot, n), cold)]

    return night


def uniform(rng: np.random.Generator, keys: int) -> Night:
    return lambda: rng.integers(0, keys, int(keys * NEW), dtype=np.int32)


def zipf(rng: np.random.Generator, keys: int) -> Night:
    """Return a function that draws keys with probability 1 / rank: no border between hot and cold."""
    names = rng.permutation(keys).astype(np.int32)
    return lambda: names[np.minimum((keys + 1.0) ** rng.random(int(keys * NEW)) - 1, keys - 1).astype(np.int64)]


DRAWS: dict[str, Draw] = {"skewed": skewed, "uniform": uniform, "zipf": zipf}


def simulate(night: Night, keys: int, rule: Rule, nights: int = NIGHTS, skip: int = 0) -> Measured:
    """Return what a rule costs over so many nights, after the skipped ones, from a run to a run: what waits at the end
    has not been paid for.
    """
    per = -(-keys // SEGMENTS)
    last = (np.arange(keys) // per).astype(np.int32)  # the segment of each key's last record
    records = np.bincount(last).astype(np.int64)
    applied = np.zeros(len(records), np.int64)  # the last night whose records a segment was cleaned with
    dead = np.zeros(len(records), np.int64)
    whole = rule.min_yield is None
    policy = ScheduleLimits(1.0 if rule.min_yield is None else rule.min_yield, None, rule.segment_bytes)
    key_files = np.zeros(nights + skip + 1)
    io = np.zeros((nights + skip, len(PARTS)))
    waiting: list[np.ndarray] = []
    space, most = np.zeros(nights + skip), 0
    for tonight in range(1, nights + skip + 1):
        waiting.append(night())
        arrived = sum(map(len, waiting))
        space[tonight - 1] = records.sum() + arrived
        if arrived / (records.sum() + arrived) <= rule.min_dirty_ratio:
            continue
        unread = np.array([key_files[done + 1 : tonight].sum() for done in applied])
        distinct = np.unique(np.concatenate(waiting))
        waiting = []
        alive = np.bincount(last, minlength=len(records))
        died = np.bincount(last[distinct], minlength=len(records))
        chosen = choose(Segments(records * RECORD, records, dead + died, np.full(len(records), whole)), policy)
        last[distinct] = len(records)
        alive, records, applied = (
            np.append(a, b) for a, b in ((alive - died, len(distinct)), (records, len(distinct)), (applied, tonight))
        )
        output, unread = np.append(chosen.output, -1), np.append(unread, 0.0)
        selected = output >= 0
        reads, older = rule.reads_of_all if whole else READS, records[:-1][selected[:-1]]
        key_files[tonight] = 0.0 if whole else HASH_BYTES * len(distinct)
        io[tonight - 1] = (
            (READS_OF_NEW * arrived + rule.writes * len(distinct)) * RECORD,
            (reads * older.sum() + rule.writes * alive[:-1][selected[:-1]].sum()) * RECORD,
            0.0 if whole else (FILTER_BYTES + FACTS_SHARE * RECORD) * (records.sum() + alive[selected].sum()),
            key_files[tonight] + unread[selected].max(initial=0.0),
        )
        # segments that share an output become one, in the place of the first of them
        begins = np.flatnonzero(np.append(True, (output[1:] < 0) | (output[1:] != output[:-1])))
        last = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(output)))).astype(np.int32)[last]
        applied = np.maximum.reduceat(np.where(selected, tonight, applied), begins)
        records = np.add.reduceat(np.where(selected, alive, records), begins)
        dead = records - np.bincount(last, minlength=len(records))
        space[tonight - 1], most = records.sum(), max(most, len(records))
    runs = np.flatnonzero(io[:, 0])
    first, end = (int(runs[runs < skip][-1]) + 1 if skip else 0), int(runs[-1]) + 1
    parts = io[first:end].sum(axis=0) / ((end - first) * int(keys * NEW) * RECORD)
    return Measured(float(parts.sum()), float(space[first:end].mean() / keys), parts, most)


def ours(draw: Draw, keys: int, ratio: float, min_yield: float, skip: int = 0) -> Measured:
    """Return what runs by yield cost."""
    rule = Rule(ratio, min_yield, keys * RECORD // SEGMENTS)
    return simulate(draw(np.random.default_rng(SEED), keys), keys, rule, skip=skip)


def broker(draw: Draw, keys: int, *, kafka: bool = False) -> np.ndarray:
    """Return float64[len(PERIODS), 2]: space and I/O of the broker's rule, ascending by space.

    kafka: as Kafka's own cleaner reads and writes; else as Lastkey does in a run that cleans everything.
    """
    how = {"reads_of_all": 1, "writes": 1} if kafka else {}
    rounds = []
    for period in PERIODS:
        ratio = period * NEW / (1 + period * NEW)  # dirty ratio after so many runs were not due
        rule = Rule(ratio * 0.999, None, keys * RECORD // SEGMENTS, **how)
        measured = simulate(draw(np.random.default_rng(SEED), keys), keys, rule, NIGHTS // period * period)
        rounds.append((measured.space, measured.io))
    return np.array(rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[400_000])
    parser.add_argument("--draws", nargs="+", choices=DRAWS, default=list(DRAWS))
    parser.add_argument("--settled", action="store_true")
    arguments = parser.parse_args()
    for keys in arguments.keys:
        for draw in (DRAWS[name] for name in arguments.draws):
            for skip in (0, NIGHTS) if arguments.settled else (0,):
                compare(draw, keys, skip)


def compare(draw: Draw, keys: int, skip: int) -> None:
    """Print a line for each dirty ratio and yield."""
    curve, kafka = broker(draw, keys), broker(draw, keys, kafka=True)
    print(f"\n{keys:,} keys, {draw.__name__}{', settled' if skip else ''}")
    print(
        "| ratio | yield | space | I/O | new | rewrites | filters | keys | segments "
        "| same rule | share | Kafka | share |"
    )
    print("|" + "---|" * 13)
    for ratio, min_yield in itertools.product(RATIOS, MIN_YIELDS):
        measured = ours(draw, keys, ratio, min_yield, skip)
        if measured.space > curve[-1, 0]:
            continue
        theirs, of_kafka = (float(np.interp(measured.space, *result.T)) for result in (curve, kafka))
        parts = " | ".join(f"{part:.2f}" for part in measured.parts)
        print(
            f"| {ratio:g} | {min_yield:g} | {measured.space:.3f} | {measured.io:.2f} | {parts} | {measured.segments} "
            f"| {theirs:.2f} | {measured.io / theirs:.2f} | {of_kafka:.2f} | {measured.io / of_kafka:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
