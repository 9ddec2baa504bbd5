"""Imported by the process that Python workers are forked from: what every task needs, compiled kernels included.

A kernel is loaded from numba's cache at its first call, so each one is called here on nothing.
"""

from __future__ import annotations

from logformat import batch_kernels, index_kernels, legacy_kernels, producer_kernels  # noqa: F401 - loaded on purpose
from udfs import compact_partition, rewrite_group, scan_keys  # noqa: F401 - loaded on purpose
