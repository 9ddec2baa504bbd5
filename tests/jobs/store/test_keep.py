"""The rule of `vacuum --keep`."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from lastkey.jobs.store.keep import Keep, kept_by, parse_keep
from tests.builders.logs import START_MS

HOUR = 3_600_000


def as_borg_prunes(keep: Keep, made: dict[int, int]) -> dict[int, str]:
    """Return what borg's manual says: walk from the newest on; of each period that a calendar names the first stays,
    unless an earlier rule has it, until there are as many as were asked for.
    """
    patterns = ((f"--keep {keep.generations}", keep.generations, ""), (f"--keep {keep.daily}d", keep.daily, "%Y-%m-%d"))
    kept: dict[int, str] = {}
    for name, most, pattern in (*patterns, (f"--keep {keep.weekly}w", keep.weekly, "%G-%V")):
        last, left = "", most
        for number in sorted(made, reverse=True):
            at = datetime.fromtimestamp(made[number] / 1000, UTC)
            period = at.strftime(pattern) if pattern else str(number)
            if left and period != last:
                last = period
                if number not in kept:
                    kept[number] = name
                    left -= 1
    return kept


@pytest.mark.parametrize("seed", range(40))
def test_rules_select_like_borg_prune(seed):
    rng = random.Random(seed)
    at, made = START_MS + rng.randrange(7 * 24) * HOUR, {}
    for number in range(1, rng.randint(2, 60)):
        at += rng.choice((HOUR, 5 * HOUR, 24 * HOUR, 24 * HOUR, 24 * HOUR, 100 * HOUR, 900 * HOUR))
        made[number] = at
    keep = Keep(rng.randrange(4), rng.randrange(9), rng.randrange(9))
    assert kept_by(keep, made) == as_borg_prunes(keep, made)


def test_keep_rules_skip_days_without_a_generation():
    made = {1: START_MS, 2: START_MS + 24 * HOUR, 3: START_MS + 500 * HOUR, 4: START_MS + 501 * HOUR}
    assert kept_by(Keep(daily=2), made) == {4: "--keep 2d", 2: "--keep 2d"}
    assert kept_by(Keep(), made) == {}
    assert kept_by(Keep(generations=9), made).keys() == made.keys()


def test_keep_rules_are_parsed_in_any_order_without_duplicates():
    assert parse_keep(["3", "4w,7d"]) == Keep(3, 7, 4)
    assert parse_keep([]) == Keep()
    for wrong in (["3,4"], ["2d", "3d"], ["7m"], ["-1"], [""], ["d"]):
        with pytest.raises(ValueError):
            parse_keep(wrong)
