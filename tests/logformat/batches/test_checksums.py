"""Checksums over whole batches, combined from those that they bear, against google-crc32c's own over all bytes."""

from __future__ import annotations

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastkey.logformat.batches.checksum_kernels import extend_by_batches

SIZES = [61, 62, 1023, 1024, 1025, 21 + 256, 21 + 65_536, 21 + (1 << 16) + 1, 70_001]
LARGE = (1 << 24) + 21 + 256  # each of the four tables is used


def batch(size: int, magic: int, seed: int) -> bytes:
    made = bytearray(np.random.default_rng(seed).bytes(size))
    made[16] = magic
    made[17:21] = google_crc32c.value(bytes(made[21:])).to_bytes(4, "big")
    return bytes(made)


@given(
    st.lists(st.tuples(st.sampled_from(SIZES), st.sampled_from([0, 1, 2, 2, 2, 3])), max_size=6),
    st.binary(max_size=20),
    st.integers(0, 2**32),
)
def test_combined_checksums_equal_that_of_all_bytes(batches, before, seed):
    data = b"".join(batch(size, magic, seed + i) for i, (size, magic) in enumerate(batches))
    checksum = extend_by_batches(
        google_crc32c.value(before), np.frombuffer(data, np.uint8), np.array([size for size, _ in batches], np.int64)
    )
    assert checksum == google_crc32c.value(before + data)


def test_checksum_of_a_large_batch_is_extended():
    data = batch(LARGE, 2, 1)
    assert extend_by_batches(5, np.frombuffer(data, np.uint8), np.array([LARGE])) == google_crc32c.extend(5, data)


@pytest.mark.parametrize("place", [0, 16, 17, 20, 21, 30_000, 69_999])
def test_changed_byte_changes_the_checksum(place):
    """But in a body, which the walk of the read-back checks: there the checksum of the header covers it."""
    whole = batch(1000, 2, 1) + batch(70_000, 2, 2)
    changed = bytearray(whole)
    changed[1000 + place] ^= 4
    sizes = np.array([1000, 70_000])
    same = extend_by_batches(0, np.frombuffer(bytes(changed), np.uint8), sizes) == google_crc32c.value(whole)
    assert same == (place >= 21)


def test_sizes_that_do_not_add_up_to_the_bytes_are_refused():
    with pytest.raises(ValueError, match="batches of 2048 bytes in 2047"):
        extend_by_batches(0, np.zeros(2047, np.uint8), np.array([1024, 1024]))
