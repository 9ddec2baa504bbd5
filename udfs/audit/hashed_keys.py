"""Keys that are known by their HMAC-SHA256 alone: the search of logs for the keys themselves."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from lastkey.logformat.primitives.binary_arrays import spans_of
from lastkey.udfs.attempt import attempt
from lastkey.udfs.audit.find_in_logs import LogSearch
from lastkey.udfs.audit.findings import Found, SearchFile
from lastkey.udfs.audit.hash_kernels import hmac_values, states_of

HASH_BYTES: Final = 32


class HashedKeys:
    """A set of HMACs, as `LogSearch` takes a set of keys. It finds no place, but notes the keys that it sees."""

    secret = (0, 0)  # of the decoder's hashes, which nobody reads here
    longest = 0
    groups: Sequence[Any] = ()  # no bytes are searched for

    def __init__(self, hashes: Sequence[bytes], states: np.ndarray) -> None:
        self._hashes = np.sort(np.array(hashes, f"V{HASH_BYTES}").view(">u8").reshape(-1, 4)[:, 0].astype(np.uint64))
        self._states = states
        self.found: set[bytes] = set()

    def __len__(self) -> int:
        return 0

    def may_hold(self, high: np.ndarray) -> np.ndarray:
        """Return bool[n]: every key has to be hashed."""
        return np.ones(len(high), np.bool_)

    def rows(self, high: np.ndarray, keys: Any) -> np.ndarray:
        """Note the wanted ones of these keys, a pa.BinaryArray[n]. Return int64[n]: -1, for places do not matter."""
        out = np.empty((len(keys), HASH_BYTES), np.uint8)
        data, at = spans_of(keys)
        hmac_values(data, at, self._states, out)
        first = out[:, :8].copy().view(">u8")[:, 0].astype(np.uint64)
        near = np.minimum(np.searchsorted(self._hashes, first), len(self._hashes) - 1)
        held = self._hashes[near] == first
        for key in keys.filter(pa.array(held)).unique().to_pylist() if held.any() else ():
            self.found.add(key)
        return np.full(len(keys), -1, np.int64)


def keys_of(hashes: Sequence[bytes], secret: bytes, files: Sequence[SearchFile]) -> set[bytes]:
    """Return the keys in these logs whose HMAC-SHA256 by `secret` is one of the hashes. What cannot be read holds none
    here: the search for the keys that follows names it.
    """
    wanted = HashedKeys(hashes, states_of(secret))
    search, found = LogSearch(wanted), Found(0)  # type: ignore[arg-type]  # what LogSearch needs of a key set
    for file in files:
        attempt(file.shown, lambda file=file: search.search(file, found))  # type: ignore[misc]
    return {key for key in wanted.found if hmac.digest(secret, key, "sha256") in hashes}
