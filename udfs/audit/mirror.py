"""Comparison of two copies of the same topics, key by key: missing, stale, different and extra records in B.

The versions of a key are its records, tombstones included, in the order of their offsets, matched by `runs.match`.
Only the number of equal versions can differ between the sides.

A key is judged by its last version on each side, since compaction may drop all others on either side at any time:

| kind | last versions |
|---|---|
| equal | are the same |
| deleted | one side ends with a tombstone, the other has no record of the key: compaction dropped the tombstone too |
| missing, extra | one side has no record of the key |
| stale | B does not have A's, and its own is an older version of A (or older than all that A still has) |
| different | neither side has the other's |
| ahead | B has A's, and newer versions that A does not have |
| order | B has A's, but before an older version; also if older versions have another order |
| unknown | would be one of these, but the deciding records are in an unreadable part of a log |

Older versions on one side only are counted, and are findings (`missing_version`, `extra_version`) if the caller states
that neither side was compacted; then a key that is `deleted` is missing or extra.

Records without a key are compared as a set that counts, partition by partition: `missing_record`, `extra_record`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lastkey.udfs.audit.runs import PAIR_COLUMNS, Bools, Ints, Matches, Unit, VersionRows, first_valid, match, sums
from lastkey.udfs.audit.tables import PAIRS, added_up, first_rows, joined, make_table

EQUAL, DELETED, UNKNOWN = "equal", "deleted", "unknown"
LAWFUL: Final = (EQUAL, DELETED)
FINDINGS: Final = (
    "missing", "stale", "different", "extra", "ahead", "order", "missing_version", "extra_version",
    "missing_record", "extra_record", UNKNOWN,
)  # fmt: skip
_KINDS: Final = (*LAWFUL, *FINDINGS)  # a row's kind is a place in it
_CODE: Final = {kind: np.int8(code) for code, kind in enumerate(_KINDS)}
# Without a key "keys" are groups of equal records
COUNTS: Final = ("keys", "a_versions", "b_versions", "missing_versions", "extra_versions")
_RESTS_ON_A: Final = ("extra", "different", "ahead", "extra_version", "extra_record")
_RESTS_ON_B: Final = ("missing", "stale", "different", "missing_version", "missing_record")
_PLACE: Final = ("topic", "partition", "kind", "without_key")
_ORDER: Final = [
    (name, "ascending", "at_start")
    for name in ("topic", "partition", "kind", "a_offset", "b_offset", "a_partition", "b_partition")
]
_PLACES: Final = ("a_partition", "a_offset", "a_timestamp_ms", "b_partition", "b_offset", "b_timestamp_ms")
# Rows of reports: keys of a kind in a partition, and findings
PARTITION_KINDS: Final = pa.schema([PAIRS.field(name) for name in (*_PLACE, *COUNTS)])
FINDING: Final = pa.schema([PAIRS.field(name) for name in (*_PLACE, "key", *_PLACES, *COUNTS[1:])])


@dataclass
class _Outcomes:
    """Outcomes of keys, or of groups of equal records without a key: arrays of one length."""

    kind: NDArray[np.int8]
    unit: NDArray[np.int32]
    a: Ints  # position of the record that shows it on each side; -1: none
    b: Ints
    counts: Ints  # COUNTS without "keys" of each: int64[4, n]
    without_key: bool

    def rows(self, chosen: Bools) -> _Outcomes:
        """Return the chosen outcomes."""
        if chosen.all():
            return self
        at = np.flatnonzero(chosen)
        counts = self.counts.take(at, axis=1)
        return _Outcomes(self.kind[at], self.unit[at], self.a[at], self.b[at], counts, self.without_key)


Summary = Mapping[str, pa.Table]  # "partitions": PARTITION_KINDS; "first": FINDING


@dataclass(frozen=True)
class MirrorQuestion:
    """Question of `audit mirror`. unread: the units of A, and those of B, that could not be read in whole."""

    source: str
    unread: tuple[frozenset[Unit], frozenset[Unit]]
    ignore_timestamps: bool
    every_version: bool
    most: int
    schema = PAIRS
    columns = PAIR_COLUMNS

    def answer(self, parts: Iterable[VersionRows]) -> tuple[pa.Table, None]:
        """Return a row for each finding, and one row for all allowed differences of a kind and a unit."""
        lawful, findings = zip(*(self._part(part) for part in parts), strict=True)
        counts = added_up(pa.concat_tables(lawful), _PLACE)
        rows = make_table(
            len(counts), {"source": self.source} | {name: counts[name] for name in counts.column_names}, PAIRS
        )
        return pa.concat_tables([rows, *findings]), None

    def _part(self, versions: VersionRows) -> tuple[pa.Table, pa.Table]:
        """Return counts of allowed differences, and rows of findings."""
        matches = match(versions, ignore_timestamps=self.ignore_timestamps)
        keyless = matches["keyless"]
        lawful, findings = [], []
        every = [self._key_outcomes(matches, keyless), *([_without_key(matches, keyless)] if keyless.any() else [])]
        for outcomes in every:
            self._mark_unknown(outcomes, versions.sides.units)
            is_lawful = outcomes.kind < len(LAWFUL)
            lawful.append(_sums(matches, outcomes.rows(is_lawful)))
            findings.append(_findings(self.source, matches, outcomes.rows(~is_lawful)))
        return pa.concat_tables(lawful), pa.concat_tables(findings)

    def summary(self, table: pa.Table) -> Summary:
        """Return the counts of each partition and kind, and the first findings."""
        return self.merged([{"partitions": table.select(PARTITION_KINDS.names), "first": table.select(FINDING.names)}])

    def merged(self, summaries: Sequence[Summary]) -> Summary:
        """Return the counts, and the first findings, of all."""
        tables = joined(summaries)
        findings = tables["first"].filter(pc.invert(pc.is_in(tables["first"]["kind"], pa.array(LAWFUL))))
        return {"partitions": added_up(tables["partitions"], _PLACE), "first": first_rows(findings, _ORDER, self.most)}

    def _key_outcomes(self, matches: Matches, keyless: Bools) -> _Outcomes:
        keys, in_b = matches.keys, matches["side"]
        alone = matches.links.copy < 0
        counts = tuple(sums(keys, each) for each in (~in_b, in_b, ~in_b & alone, in_b & alone))
        no_a, no_b = counts[0] == 0, counts[1] == 0
        first_a = np.where(no_a, -1, keys.starts)  # in a group those of A come first
        last_a = np.where(no_a, -1, keys.starts + counts[0] - 1)
        last_b = np.where(no_b, -1, keys.ends - 1)
        turned = first_valid(keys, _turned(matches, in_b))
        digest, time, tombstone = (matches[name] for name in ("digest", "timestamp_ms", "tombstone"))
        same = digest[last_a] == digest[last_b]
        later = np.zeros(len(same), np.bool_)
        if not self.ignore_timestamps:
            same &= time[last_a] == time[last_b]
            later = time[last_b] < time[first_a]
        misses_last, is_known = matches.links.n_b[last_a] < matches.links.n_a[last_a], matches.links.n_a[last_b] > 0
        dropped = np.where(no_a, tombstone[last_b], tombstone[last_a]) & (not self.every_version)
        rules = {
            DELETED: (no_a | no_b) & dropped,
            "missing": no_b,
            "extra": no_a,
            "order": same & (turned >= 0),
            EQUAL: same,
            "stale": misses_last & (is_known | later),
            "different": misses_last,
        }
        kind = np.select(list(rules.values()), [_CODE[name] for name in rules], np.where(is_known, *_last("order")))
        if self.every_version:
            equal, (_, _, missing, extra) = kind == _CODE[EQUAL], counts
            kind = np.where(equal & (extra > 0), _CODE["extra_version"], kind)
            kind = np.where(equal & (missing > 0), _CODE["missing_version"], kind)
        swapped = (kind == _CODE["order"]) & (turned >= 0)
        a, b = np.where(swapped, turned, last_a), np.where(swapped, matches.links.copy[turned], last_b)
        if self.every_version:
            missing_one, extra_one = kind == _CODE["missing_version"], kind == _CODE["extra_version"]
            a = np.select([extra_one, missing_one], [-1, first_valid(keys, ~in_b & alone)], a)
            b = np.select([missing_one, extra_one], [-1, first_valid(keys, in_b & alone)], b)
        outcomes = _Outcomes(kind.astype(np.int8), matches["unit"][keys.starts], a, b, np.stack(counts), False)
        return outcomes.rows(~keyless[keys.starts])

    def _mark_unknown(self, outcomes: _Outcomes, units: Sequence[Unit]) -> None:
        """Replace kinds that rest on a record's absence where that side could not be read."""
        rests = [np.isin(outcomes.kind, [_CODE[name] for name in kinds]) for kinds in (_RESTS_ON_A, _RESTS_ON_B)]
        for of_side, unread in zip(rests, self.unread, strict=True):
            if unread:
                is_unread = np.array([unit in unread for unit in units], np.bool_)
                outcomes.kind[of_side & is_unread[outcomes.unit]] = _CODE[UNKNOWN]


def _last(known: str) -> tuple[np.int8, np.int8]:
    return _CODE[known], _CODE["ahead"]


def _turned(matches: Matches, in_b: Bools) -> Bools:
    """Return bool[n]: which versions of A have a copy before the copy of an earlier one of the key. A version that
    repeats in different numbers on the two sides is left out, because the matching copy is unknown.
    """
    certain = ~in_b & (matches.links.copy >= 0) & (matches.links.n_a == matches.links.n_b)
    copies = np.where(certain, matches.links.copy, -1)
    earlier = np.maximum.accumulate(np.append(np.int64(-1), copies[:-1]))  # copies of earlier keys have lower rows
    turned: Bools = certain & (copies < earlier[: len(copies)])
    return turned


def _without_key(matches: Matches, keyless: Bools) -> _Outcomes:
    at = np.flatnonzero(keyless & (matches.links.first == np.arange(len(keyless))))
    n_a, n_b = matches.links.n_a[at], matches.links.n_b[at]
    kind = np.select([n_a > n_b, n_a < n_b], [_CODE["missing_record"], _CODE["extra_record"]], _CODE[EQUAL])
    a, b = np.where(n_a == 0, -1, at), np.where(n_a == 0, at, matches.links.copy[at])
    counts = np.stack([n_a, n_b, np.maximum(n_a - n_b, 0), np.maximum(n_b - n_a, 0)])
    return _Outcomes(kind.astype(np.int8), matches["unit"][at], a, b, counts, True)


def _columns(matches: Matches, outcomes: _Outcomes) -> dict[str, Any]:
    """Return the columns that all rows of outcomes have."""
    return {
        "kind": pa.DictionaryArray.from_arrays(pa.array(outcomes.kind), pa.array(_KINDS)),
        "without_key": outcomes.without_key,
        **matches.versions.sides.places(outcomes.unit),
        **dict(zip(COUNTS[1:], outcomes.counts, strict=True)),
    }


def _sums(matches: Matches, outcomes: _Outcomes) -> pa.Table:
    """Return the counts of each unit and kind."""
    columns = outcomes.unit, outcomes.kind, np.ones(len(outcomes.unit), np.int64), *outcomes.counts
    added = added_up(pa.table(columns, names=["unit", "kind", *COUNTS]), ("unit", "kind"))
    unit, kind, keys, *counts = map(np.asarray, added.columns)
    rows = _Outcomes(kind, unit, unit, unit, np.stack(counts), outcomes.without_key)
    return make_table(len(unit), _columns(matches, rows) | {"keys": keys}, PARTITION_KINDS)


def _findings(source: str, matches: Matches, outcomes: _Outcomes) -> pa.Table:
    """Return a row for each outcome."""
    versions, order = matches.versions, matches.keys.order
    columns = _columns(matches, outcomes) | {"source": source, "keys": 1}
    for side, places in (("a", outcomes.a), ("b", outcomes.b)):
        rows = order[places] if len(order) else places
        for name in ("partition", "offset", "timestamp_ms"):
            columns[f"{side}_{name}"] = pa.array(versions[name][rows], mask=places < 0)
    if not outcomes.without_key:
        shows = np.maximum(outcomes.a, outcomes.b)
        columns["key"] = versions.arrow(order[shows] if len(order) else shows, "key")[0]
    return make_table(len(outcomes.kind), columns, PAIRS)
