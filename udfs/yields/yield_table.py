"""Deaths of records by age: the one table that schedules learn from.

A record dies when a newer one of its key arrives. Few keys take most updates, so most records die young, and those that
survived some runs hardly die any more. The table counts, for each age in runs, the records that were there when a run
began and those that died in it. An age is counted from the run that first cleaned a record; a rewrite does not make it
younger. Only new records kill, so offsets are the clock: a run's worth is as many new offsets as the first run counted.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np

AGES: Final = 64  # rows of the table; the last one holds all older records too, and those whose age nobody knows
OLDEST: Final = AGES - 1
MEMORY: Final = 0.97  # weight of a count one run later: the last 30 runs or so decide, so a change of habits is seen
ENOUGH: Final = 100.0  # records an age must have shown, else its neighbours speak for it
_TOTALS: Final = ("new_records", "new_survivors", "run_offsets")


@dataclass(frozen=True)
class Yields:
    """Counts of earlier runs, the newest with the greatest weight."""

    records: np.ndarray  # float64[AGES]: live records of this age when a run began
    deaths: np.ndarray  # float64[AGES]: those that died within one run
    new_records: float = 0.0  # records that arrived
    new_survivors: float = 0.0  # those among them that no record of the same run superseded
    run_offsets: float = 0.0  # new offsets that are one run's worth; 0: no run was counted yet


def no_yields() -> Yields:
    """Return the table of a store without history."""
    return Yields(np.zeros(AGES), np.zeros(AGES))


def bin_of(age: np.ndarray) -> np.ndarray:
    """Return int64[n], the rows of the table for ages float64[n] in runs."""
    return np.asarray(np.clip(np.rint(age), 0, OLDEST), np.int64)


def record_yields(
    yields: Yields,
    age: np.ndarray,
    live_records: np.ndarray,
    died: np.ndarray,
    *,
    new_records: float,
    new_survivors: float,
    elapsed: float = 1.0,
) -> Yields:
    """Return the table with one more run in it.

    age: float64[n], of each segment at the run before; live_records: float64[n] then; died: float64[n], those of them
    that the new records supersede. elapsed: runs' worth of new records that this run took at once. Deaths of several
    are spread evenly, in proportion, over as many ages; in a part of a run's worth the records count as that part.
    """
    n, part = max(round(elapsed), 1), min(elapsed, 1.0)
    steps = np.arange(n)
    survival = np.clip(1 - died / np.maximum(live_records, 1), 0, 1) ** (1 / n)
    there = live_records[:, None] * survival[:, None] ** steps
    rows = np.minimum(bin_of(age)[:, None] + steps, OLDEST)
    records, deaths = yields.records * MEMORY, yields.deaths * MEMORY
    np.add.at(records, rows, there * part)
    np.add.at(deaths, rows, there * (1 - survival[:, None]))
    counted = Yields(records, deaths)
    # the survivors of several runs' worth: those of one, thinned by what came later
    first = new_survivors / float(survival_curve(hazards(counted), n)[:n].sum()) * n
    return Yields(
        records,
        deaths,
        yields.new_records * MEMORY + new_records,
        yields.new_survivors * MEMORY + min(first, new_records),
        yields.run_offsets,
    )


def to_text(yields: Yields) -> str:
    """Return the table as JSON; counts are rounded to tenths."""
    seen = int(np.flatnonzero(yields.records).max(initial=-1)) + 1
    plain = {name: np.round(getattr(yields, name)[:seen], 1).tolist() for name in ("records", "deaths")}
    return json.dumps(plain | {name: round(getattr(yields, name), 1) for name in _TOTALS})


def from_text(text: str | None) -> Yields:
    """Return the table that `to_text` wrote; an empty one for None, or a text that is no table: runs learn again."""
    with suppress(ValueError, TypeError, KeyError):
        told = json.loads(text or "")
        counts = (np.array(told[name], float) for name in ("records", "deaths"))
        records, deaths = (np.pad(count, (0, AGES - len(count))) for count in counts)
        found = Yields(records, deaths, *(float(told[name]) for name in _TOTALS))
        numbers = np.concatenate([records, deaths, [found.new_records, found.new_survivors, found.run_offsets]])
        if (np.isfinite(numbers) & (numbers >= 0)).all() and not 0 < found.run_offsets < 1:
            return found
    return no_yields()


def hazards(yields: Yields) -> np.ndarray:
    """Return float64[AGES] in (0, 1): the share of the records of an age that dies in one run.

    An age that was hardly seen lies on the straight line between its seen neighbours when both scales are logarithmic,
    as deaths fall off by age, and outside of them equals the nearest one. Half a death is added, for what never died
    may die.
    """
    seen = np.flatnonzero(yields.records >= ENOUGH)
    if not len(seen):
        seen = np.array([OLDEST])
    share = (yields.deaths[seen] + 0.5) / (yields.records[seen] + 1)
    logs = np.interp(np.log1p(np.arange(AGES)), np.log1p(seen), np.log(share))
    return np.asarray(np.minimum(np.exp(logs), 1 - 1e-6))


def survival_curve(hazard: np.ndarray, n: int, age: int = 0) -> np.ndarray:
    """Return float64[n + 1]: the share of records of an age that live 0 to n runs later; beyond the table the last
    hazard holds for ever.
    """
    rows = np.minimum(age + np.arange(n), OLDEST)
    return np.append(1.0, np.cumprod(1 - hazard[rows]))
