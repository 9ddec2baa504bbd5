"""Bytes read and written for each new byte, against space used: `python -m tests.bench.simulate_yields`.

A log of `keys` live keys, one record of 100 bytes each, gets 5 % new records a night, for 60 nights. Each key's last
record is followed exactly; a segment's dead records are those that are no key's last one. Segments hold 1 / 40 of the
live records. *Skewed*: 90 % of the writes go to 2 % of the keys; *uniform*: all keys alike. Hot keys lie anywhere.

Counted as Lastkey's job counts, for both rules: new bytes are read twice (scan with checksums, cleaning); what survives
is written and read back; a run that takes the whole log reads clean segments twice too. A run by yield reads a segment
once, because its facts spare the scan. Beside stands Kafka's own cleaner (`kafka`): it reads new bytes twice and clean
ones once, checks nothing and reads nothing back. Filters and key files are counted for runs by yield: 2 bytes a record
and 0.5 % of the segment read for each segment, as much written with each new one, 16 bytes written for each distinct
new key, and read once in a run that rewrites any segment, for all runs that the least recently cleaned of those
segments has not seen.

Space is the mean, over the nights, of all bytes after the night's run, new ones that wait included, divided by the live
ones. Ours is swept by the price of a dead byte, the broker's by its dirty ratio, each over whole cycles. Beside ours
stands the broker's I/O at the same space, on the straight line between its two neighbouring points, which a broker
reaches that takes turns between the two. The clairvoyant knows all deaths, cleans every night, rewrites each segment in
the nights that cost least for the same price, and pays for no filters and keys. Logs begin clean, with their hot keys
anywhere in them; `settled` skips 60 nights first.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lastkey.udfs.yields.schedule import (
    FACTS_SHARE,
    FILTER_BYTES,
    HASH_BYTES,
    KEPT,
    READS_OF_NEW,
    Pace,
    Policy,
    Segments,
    choose,
    pace,
)
from lastkey.udfs.yields.yield_table import OLDEST, Yields, no_yields, record_yields
from tests.reference.yield_optimum import bytes_of, cost_of, optimum

RECORD = 100  # bytes
SEGMENTS = 40  # of the live records at the start
NIGHTS = 60
NEW = 0.05
PARTS = ("new", "rewrites", "filters", "keys")
PRICES = (20.0, 10.0, 5.0, 3.0, 2.0, 1.0, 0.5, 0.3, 0.2, 0.1)
PERIODS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30)  # nights between two cleanings of the broker's
SEED = 1
QUANTILES = {"median": 0.5, "95 %": 0.95, "99 %": 0.99, "worst": 1.0}
Night = Callable[[], np.ndarray]
Draw = Callable[[np.random.Generator, int], Night]


@dataclass(frozen=True)
class BrokersRule(Policy):
    """Policy that rewrites the whole log above a ratio of new bytes."""

    min_dirty_ratio: float = 0.5


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


def simulate(night: Night, keys: int, policy: Policy, nights: int = NIGHTS, skip: int = 0) -> Measured:
    """Return what a policy costs over so many nights, after the skipped ones, from a run to a run: what waits at the
    end has not been paid for.
    """
    per = -(-keys // SEGMENTS)
    last = (np.arange(keys) // per).astype(np.int32)  # the segment of each key's last record
    records = np.bincount(last).astype(np.int64)
    begin = np.append(0, np.cumsum(records))  # offsets: of each segment, and of the end of the cleaned log
    unit = int(keys * NEW)  # offsets that are one run's worth
    applied = np.zeros(len(records), np.int64)  # the last night whose records a segment was cleaned with
    dead = np.zeros(len(records))
    yields = no_yields()
    key_files = np.zeros(nights + skip + 1)
    io = np.zeros((nights + skip, len(PARTS)))
    waiting: list[np.ndarray] = []
    space, most = np.zeros(nights + skip), 0
    for tonight in range(1, nights + skip + 1):
        waiting.append(night())
        arrived, elapsed = sum(map(len, waiting)), len(waiting)
        space[tonight - 1] = records.sum() + arrived
        unread = np.array([key_files[done + 1 : tonight].sum() for done in applied])
        age = np.maximum((begin[-1] - (begin[:-1] + begin[1:]) / 2) / unit - 0.5, 0.0)
        segments = Segments(records * RECORD, records, dead, age, np.zeros(len(age), bool), unread)
        if isinstance(policy, BrokersRule):
            dirty = len(waiting[-1]) * elapsed
            plan = Pace(dirty / (records.sum() + dirty) > policy.min_dirty_ratio, True, elapsed)
        else:
            plan = pace(segments, yields, policy, new_bytes=len(waiting[-1]) * RECORD, waiting=elapsed)
        if not plan.due:
            continue
        distinct = np.unique(np.concatenate(waiting))
        waiting = []
        alive = np.bincount(last, minlength=len(records))
        died = np.bincount(last[distinct], minlength=len(records))
        yields = record_yields(
            yields, age, alive, died, new_records=arrived, new_survivors=len(distinct), elapsed=elapsed
        )
        age, whole = np.rint(age) + elapsed, plan.rewrite_all
        segments = Segments(records * RECORD, records, dead + died, age, np.full(len(age), whole), unread)
        chosen = choose(segments, yields, policy, every=plan.every)
        last[distinct] = len(records)
        alive, records, applied = (
            np.append(a, b) for a, b in ((alive - died, len(distinct)), (records, len(distinct)), (applied, tonight))
        )
        begin, output, unread = (
            np.append(begin, begin[-1] + arrived),
            np.append(chosen.output, -1),
            np.append(unread, 0.0),
        )
        taken = output >= 0
        reads, older = policy.reads_of_all if whole else policy.reads, records[:-1][taken[:-1]]
        key_files[tonight] = 0.0 if whole else HASH_BYTES * len(distinct)
        io[tonight - 1] = (
            (READS_OF_NEW * arrived + policy.writes * len(distinct)) * RECORD,
            (reads * older.sum() + policy.writes * alive[:-1][taken[:-1]].sum()) * RECORD,
            0.0 if whole else (FILTER_BYTES + FACTS_SHARE * RECORD) * (records.sum() + alive[taken].sum()),
            key_files[tonight] + unread[taken].max(initial=0.0),
        )
        # segments that share an output become one, in the place of the first of them
        begins = np.flatnonzero(np.append(True, (output[1:] < 0) | (output[1:] != output[:-1])))
        last = np.repeat(np.arange(len(begins)), np.diff(np.append(begins, len(output)))).astype(np.int32)[last]
        begin = np.append(begin[begins], begin[-1])
        applied = np.maximum.reduceat(np.where(taken, tonight, applied), begins)
        records = np.add.reduceat(np.where(taken, alive, records), begins)
        dead = (records - np.bincount(last, minlength=len(records))).astype(float)
        space[tonight - 1], most = records.sum(), max(most, len(records))
    runs = np.flatnonzero(io[:, 0])
    first, end = (int(runs[runs < skip][-1]) + 1 if skip else 0), int(runs[-1]) + 1
    parts = io[first:end].sum(axis=0) / ((end - first) * int(keys * NEW) * RECORD)
    return Measured(float(parts.sum()), float(space[first:end].mean() / keys), parts, most)


def broker(draw: Draw, keys: int, *, kafka: bool = False) -> np.ndarray:
    """Return float64[len(PERIODS), 2]: space and I/O of the broker's rule, ascending by space.

    kafka: as Kafka's own cleaner reads and writes; else as Lastkey does in a run that cleans everything.
    """
    how = {"reads_of_all": 1, "writes": 1} if kafka else {}
    found = []
    for period in PERIODS:
        ratio = period * NEW / (1 + period * NEW)  # what it has reached when so many nights wait
        policy = BrokersRule(min_dirty_ratio=ratio * 0.999, segment_bytes=keys * RECORD // SEGMENTS, **how)
        measured = simulate(draw(np.random.default_rng(SEED), keys), keys, policy, NIGHTS // period * period)
        found.append((measured.space, measured.io))
    return np.array(found)


def clairvoyant(draw: Draw, keys: int, policy: Policy, nights: int = NIGHTS) -> Measured:
    """Return the least that rewriting single segments can cost when each night's new records are cleaned at once."""
    night = draw(np.random.default_rng(SEED), keys)
    last = (np.arange(keys) // -(-keys // SEGMENTS)).astype(np.int32)
    first = int(last[-1]) + 1
    born = np.maximum(np.arange(first + nights) - first + 1, 0)
    alive = np.zeros((first + nights, nights + 1))
    alive[:, 0] = np.bincount(last, minlength=len(alive))
    for tonight in range(1, nights + 1):
        last[night()] = first + tonight - 1
        alive[:, tonight] = np.bincount(last, minlength=len(alive))
    plan = optimum(alive, born, policy.price, policy.reads, writes=policy.writes)
    io, dead = bytes_of(alive, born, plan, policy.reads, policy.writes)
    new = nights * int(keys * NEW)
    kept = alive[np.arange(first, len(born)), born[first:]].sum()
    parts = np.array([READS_OF_NEW + policy.writes * kept / new, io.sum() / new, 0, 0])
    return Measured(float(parts.sum()), float(1 + dead.sum() / nights / keys), parts, len(born))


@dataclass(frozen=True)
class Instance:
    """A few segments with known deaths, and what runs before them have taught."""

    alive: np.ndarray  # float64[n, nights + 1]
    born: np.ndarray  # int64[n]
    yields: Yields
    policy: Policy


def draw_instance(rng: np.random.Generator, nights: int) -> Instance:
    """Return 1 to 8 segments of hot and cold records, born in the first five nights; the price is drawn too."""
    n, hot, fast, slow = int(rng.integers(1, 9)), rng.uniform(0, 0.9), rng.uniform(0.2, 0.9), 10 ** rng.uniform(-3, -1)
    policy = Policy(price=10 ** rng.uniform(-1, 1), segment_bytes=1, reads=2, writes=1)
    born = np.sort(rng.integers(0, 6, n))
    before = _alive(rng, np.zeros(OLDEST + 1, np.int64), OLDEST, hot, fast, slow)
    yields = no_yields()
    for age in range(OLDEST):
        there, left = before[:, age], before[:, age + 1]
        yields = record_yields(yields, np.full(len(there), age), there, there - left, new_records=1, new_survivors=1)
    return Instance(_alive(rng, born, nights, hot, fast, slow), born, yields, policy)


def _alive(rng: np.random.Generator, born: np.ndarray, nights: int, hot: float, fast: float, slow: float) -> np.ndarray:
    size = rng.integers(20_000, 100_001, len(born))
    quick = rng.binomial(size, hot)
    parts = np.array([quick, size - quick])
    alive = np.empty((len(born), nights + 1))
    alive[:, 0] = size
    for night in range(1, nights + 1):
        parts = np.where(night > born, rng.binomial(parts, [[1 - fast], [1 - slow]]), parts)
        alive[:, night] = parts.sum(axis=0)
    return alive


def plan_by_yield(instance: Instance, nights: int) -> np.ndarray:
    """Return bool[n, nights + 1], what `choose` does night by night."""
    alive, born = instance.alive, instance.born
    there = alive[np.arange(len(born)), born]
    plan = np.zeros((len(born), nights + 1), bool)
    for night in range(1, nights + 1):
        at = np.flatnonzero(night > born)
        none = np.zeros(len(at))
        sizes, dead = there[at].astype(np.int64), there[at] - alive[at, night]
        segments = Segments(sizes, sizes, dead, (night - born[at]).astype(float), none.astype(bool), none)
        now = at[choose(segments, instance.yields, instance.policy).reason != KEPT]
        plan[now, night] = True
        there[now] = alive[now, night]
    return plan


def against_optimum(rng: np.random.Generator, nights: int = 10, beyond: int = 100) -> tuple[float, float]:
    """Return our cost of an instance against the optimum's, twice: with all that follows, and cut off after the nights.

    With all that follows: after the nights both go on in the best way, all deaths known, so the difference is what our
    decisions in these nights have spoilt. Cut off, the optimum knows that nothing matters any more, and stops cleaning.
    """
    instance = draw_instance(rng, nights + beyond)
    alive, born, policy = instance.alive, instance.born, instance.policy
    ours = plan_by_yield(instance, nights)

    def cost(plan: np.ndarray) -> float:
        return float(cost_of(alive[:, : plan.shape[1]], born, plan, policy.price, policy.reads).sum())

    followed, best = (optimum(alive, born, policy.price, policy.reads, begun) for begun in (ours, None))
    short = optimum(alive[:, : nights + 1], born, policy.price, policy.reads)
    spoilt = cost(followed) - cost(best)
    # of the same ten nights: the rest of the optimum's cost is no merit of ours
    return 1 + spoilt / cost(best[:, : nights + 1]), cost(ours) / cost(short)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, nargs="+", default=[400_000])
    parser.add_argument("--draws", nargs="+", choices=DRAWS, default=list(DRAWS))
    parser.add_argument("--settled", action="store_true")
    parser.add_argument("--instances", type=int, default=400)
    given = parser.parse_args()
    rng = np.random.default_rng(SEED)
    for what, shares in zip(
        ("with all that follows", "cut off"),
        zip(*(against_optimum(rng) for _ in range(given.instances)), strict=True),
        strict=True,
    ):
        said = ", ".join(f"{name} {np.quantile(shares, q):.3f}" for name, q in QUANTILES.items())
        print(f"{given.instances} small instances against the exact optimum, {what}: {said}")
    for keys in given.keys:
        for draw in (DRAWS[name] for name in given.draws):
            compare(draw, keys, skip=0)
            if given.settled:
                compare(draw, keys, skip=NIGHTS)


def compare(draw: Draw, keys: int, skip: int) -> None:
    """Print a line for each price."""
    curve, kafka = broker(draw, keys), broker(draw, keys, kafka=True)
    print(f"\n{keys:,} keys, {draw.__name__}{', settled' if skip else ''}")
    head = "price | space | I/O | new | rewrites | filters | keys | segments | same rule | share | Kafka | share"
    print(f"| {head} | clairvoyant, space |")
    print("|" + "---|" * 13)
    for price in PRICES:
        policy = Policy(price=price, segment_bytes=keys * RECORD // SEGMENTS)
        ours = simulate(draw(np.random.default_rng(SEED), keys), keys, policy, skip=skip)
        if ours.space > curve[-1, 0]:
            break
        theirs, of_kafka = (float(np.interp(ours.space, *one.T)) for one in (curve, kafka))
        parts = " | ".join(f"{part:.2f}" for part in ours.parts)
        best = clairvoyant(draw, keys, policy) if not skip else None
        said = f"{best.io:.2f}, {best.space:.3f}" if best else ""
        print(
            f"| {price:g} | {ours.space:.3f} | {ours.io:.2f} | {parts} | {ours.segments} | {theirs:.2f} "
            f"| {ours.io / theirs:.2f} | {of_kafka:.2f} | {ours.io / of_kafka:.2f} | {said} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
