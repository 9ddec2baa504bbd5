"""Slow twin of jobs/audit/mirror.py: keys of two sides compared one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from tests.reference.sides import Seen

Place = tuple[str, int, bytes]


def judge(
    a: Sequence[Seen],
    b: Sequence[Seen],
    *,
    spread: Collection[str] = (),
    ignore_timestamps: bool = False,
    every_version: bool = False,
    unread_a: Collection[tuple[str, int]] = (),
    unread_b: Collection[tuple[str, int]] = (),
) -> dict[Place, str]:
    """Return the kind of each key: (topic, partition or -1, key) -> kind. Records without a key: see `without_key`."""
    places: dict[Place, tuple[list[Seen], list[Seen]]] = {}
    for side, rows in enumerate((a, b)):
        for r in sorted(rows, key=lambda r: (r.timestamp if r.topic in spread else 0, r.partition, r.offset)):
            if r.key is not None:
                place = (r.topic, -1 if r.topic in spread else r.partition, r.key)
                places.setdefault(place, ([], []))[side].append(r)
    kinds = {}
    for place, (of_a, of_b) in places.items():
        kind = _kind(of_a, of_b, ignore_timestamps, every_version)
        if place[:2] in unread_b and kind in ("missing", "stale", "different", "missing_version"):
            kind = "unknown"
        if place[:2] in unread_a and kind in ("extra", "ahead", "different", "extra_version"):
            kind = "unknown"
        kinds[place] = kind
    return kinds


def _kind(a: list[Seen], b: list[Seen], ignore_timestamps: bool, every_version: bool) -> str:
    versions_a, versions_b = ([r.same(ignore_timestamps) for r in rows] for rows in (a, b))
    n_a, n_b = Counter(versions_a), Counter(versions_b)
    if not a or not b:
        if (a or b)[-1].value is None and not every_version:
            return "deleted"
        return "extra" if not a else "missing"
    last_a, last_b = versions_a[-1], versions_b[-1]
    if last_a == last_b:
        # records that both sides have equally often, in their order
        certain = {version for version in n_a if n_a[version] == n_b[version]}
        if [v for v in versions_a if v in certain] != [v for v in versions_b if v in certain]:
            return "order"
        if every_version and n_a - n_b:
            return "missing_version"
        return "extra_version" if every_version and n_b - n_a else "equal"
    if n_b[last_a] < n_a[last_a]:
        a_is_younger = not ignore_timestamps and b[-1].timestamp < a[0].timestamp
        return "stale" if last_b in n_a or a_is_younger else "different"
    return "order" if last_b in n_a else "ahead"


def without_key(a: Sequence[Seen], b: Sequence[Seen], spread: Collection[str] = ()) -> Counter[tuple[str, int, str]]:
    """Return how many records without a key are equal, missing or extra: (topic, partition or -1, kind) -> records."""
    n_a, n_b = (
        Counter((r.topic, -1 if r.topic in spread else r.partition, r.same(False)) for r in rows if r.key is None)
        for rows in (a, b)
    )
    counts: Counter[tuple[str, int, str]] = Counter()
    for kind, group in (("missing_record", n_a - n_b), ("extra_record", n_b - n_a)):
        for (topic, place, _), n in group.items():
            counts[topic, place, kind] += n
    return counts
