"""The keys that an audit looks for, and three ways to find them: a record's whole key, a hash by another secret, and
bytes anywhere.

A record's key is compared in two steps. Its SipHash, which the decoder makes on its way, probes a filter of
the wanted keys, which lets one other key in about 1,000 pass. The hashes of these are looked up, and then the keys
themselves are compared byte by byte. The cost of a record hardly depends on the number of wanted keys, and reported
keys are equal to the last byte.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastkey.logformat.primitives.binary_arrays import bytes_and_bounds, keyed_hashes
from lastkey.udfs.key_search.key_set_kernels import roll_all, search
from lastkey.udfs.yields.key_filter import build_filter, holds

MOST_KEYS_BYTES: Final = 1 << 30  # limit for all keys together; Arrow's offsets end at 2^31
LEAST_TEXT_KEY: Final = 4  # bytes; a shorter key occurs in any file by chance
_BASE: Final = np.uint64(0x5851F42D4C957F2D)  # base of the rolling hash; any odd number, as what it finds is compared
_BITS_A_KEY: Final = 64  # bits for each key in the filter before the table: one position in 64 is looked up in vain


@dataclass(frozen=True)
class KeySet:
    """Distinct keys, and the secret of their hashes. Other forms of the keys are computed on use."""

    keys: Any  # pa.BinaryArray
    secret: tuple[int, int]

    @classmethod
    def of(cls, keys: Iterable[bytes]) -> KeySet:
        """Return the set of these keys, in the order in which they come first. Raise ValueError for too many bytes."""
        distinct = list(dict.fromkeys(keys))
        total = sum(map(len, distinct))
        if total > MOST_KEYS_BYTES:
            raise ValueError(f"expected at most {MOST_KEYS_BYTES:,} bytes of keys, found {total:,}")
        values = pa.array(distinct, pa.binary())
        while True:
            made = cls(values, (secrets.randbits(64), secrets.randbits(64)))
            if (made._sorted[1:] != made._sorted[:-1]).all():  # so a hash leads to one key
                return made

    def __len__(self) -> int:
        return len(self.keys)

    def __getstate__(self) -> dict[str, Any]:
        return {"keys": self.keys, "secret": self.secret}  # without what is derived

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @cached_property
    def hashes(self) -> np.ndarray:
        """u8[n, 2]: low and high half of the hash of each key."""
        return self.hashes_by(self.secret)

    def hashes_by(self, secret: tuple[int, int]) -> np.ndarray:
        """Return the hashes of the keys by another secret: u8[n, 2]."""
        return keyed_hashes(self.keys, secret)

    @cached_property
    def _order(self) -> np.ndarray:
        return np.argsort(self.hashes[:, 1])

    @cached_property
    def _sorted(self) -> np.ndarray:
        high: np.ndarray = self.hashes[self._order, 1]
        return high

    @cached_property
    def _filter(self) -> np.ndarray:
        return build_filter(self.hashes[:, 1])

    def hidden_by(self, secret: tuple[int, int]) -> KeySet:
        """Return the hashes by the secret of the audits' tables: a set of 16 bytes for each key, in the same order."""
        hashes = self.hashes_by(secret).view(np.uint8)
        fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(self), [None, pa.py_buffer(hashes)])
        return KeySet.of(fixed.to_pylist())

    def may_hold(self, high: np.ndarray) -> np.ndarray:
        """Return bool[n] for the high halves of hashes of keys, u8[n]: False is certain."""
        held: np.ndarray = holds(self._filter, np.ascontiguousarray(high))
        return held

    def rows(self, high: np.ndarray, keys: Any) -> np.ndarray:
        """Return int64[n]: the row of each of these keys in the set, -1 if it is not there. high: u8[n], their hashes;
        keys: pa.BinaryArray[n] without nulls.
        """
        at = np.minimum(np.searchsorted(self._sorted, high), len(self) - 1)
        rows = self._order[at]
        same = self._sorted[at] == high
        out = np.full(len(high), -1, np.int64)
        if same.any():
            equal = pc.equal(keys.filter(pa.array(same)), self.keys.take(pa.array(rows[same])))
            out[np.flatnonzero(same)[np.asarray(equal)]] = rows[same][np.asarray(equal)]
        return out

    def find_rows(self, values: Any) -> np.ndarray:
        """Return int64[n]: the row of each value of a pa.Array of bytes or text in the set; -1: not there, or null."""
        values = values.cast(pa.large_binary())
        high = keyed_hashes(values, self.secret)[:, 1]
        out = np.full(len(values), -1, np.int64)
        may = self.may_hold(high) & np.asarray(values.is_valid())
        if may.any():
            out[may] = self.rows(high[may], values.filter(pa.array(may)).cast(pa.binary()))
        return out

    @cached_property
    def sizes(self) -> np.ndarray:
        """int64[n]: the bytes of each key."""
        return np.diff(bytes_and_bounds(self.keys)[1]).astype(np.int64)

    @property
    def n_short(self) -> int:
        """Number of keys that are too short for a search of bytes."""
        return int((self.sizes < LEAST_TEXT_KEY).sum())

    @property
    def longest(self) -> int:
        """Bytes of the longest key."""
        return int(self.sizes.max(initial=0))

    @cached_property
    def groups(self) -> list[SizeGroup]:
        """The keys that bytes are searched for, by size."""
        return list(self._by_size())

    def _by_size(self) -> Iterator[SizeGroup]:
        data, at = bytes_and_bounds(self.keys)
        at = at.astype(np.int64)
        for size in np.unique(self.sizes[self.sizes >= LEAST_TEXT_KEY]).tolist():
            rows = np.flatnonzero(self.sizes == size)
            shift = 64 - max(int(_BITS_A_KEY * len(rows)).bit_length(), 10)
            hashes, bits = np.empty(len(rows), np.uint64), np.zeros(1 << (61 - shift), np.uint8)
            roll_all(data, at[rows], size, _BASE, shift, hashes, bits)
            order = np.argsort(hashes)
            yield SizeGroup(size, shift, bits, hashes[order], rows[order], data, at)


@dataclass(frozen=True)
class SizeGroup:
    """The keys of one size, ready to be searched for in bytes."""

    size: int
    shift: int
    bits: np.ndarray  # u1[2^(61 - shift)]
    hashes: np.ndarray  # u8[k], rising
    rows: np.ndarray  # int64[k], of the set
    data: np.ndarray  # uint8, of all keys
    at: np.ndarray  # int64[], first byte of each key of the set

    def search(self, text: np.ndarray, first: np.ndarray, start: int = 0) -> int:
        """Write to first[row] (int64[], -1: not found yet) the first position of each key in `text` (uint8), plus
        `start`. Returns the number of keys found now.
        """
        return search(
            text, len(text), self.size, _BASE, self.shift, self.bits, self.hashes, self.rows, self.data, self.at, first,
            start,
        )  # fmt: skip
