"""Kernel that finds batches whose base offset does not fit between those around them."""

from __future__ import annotations

import numpy as np

from lastkey.logformat.jit import kernel


@kernel
def drop_displaced(base: np.ndarray, last: np.ndarray, floor: int, kept: np.ndarray, stack: np.ndarray) -> None:
    """Choose batches whose offsets rise, and drop as few others as possible.

    base, last: int64[n], offsets of consecutive batches of a file; floor: the lowest offset that the first may have;
    kept: bool[n], written; stack: int64[n], scratch.

    The checksum does not cover the base offset, so a flipped bit moves a batch. If two batches contradict each other,
    the kernel drops the batch that joins fewer of its neighbours (base = last + 1). If both join equally many, it drops
    the earlier batch if the next batch also contradicts it, or there is no next batch: most flipped bits make an offset
    larger.
    """
    n = base.shape[0]
    top = -1
    for i in range(n):
        kept[i] = base[i] >= floor
        while kept[i] and top >= 0 and base[i] <= last[stack[top]]:
            earlier = stack[top]
            before = last[stack[top - 1]] if top > 0 else floor - 1
            earlier_joins = int(base[earlier] == before + 1)
            later_joins = int(base[i] == before + 1)
            contradicted = 1
            if i + 1 < n:
                earlier_joins += int(base[i + 1] == last[earlier] + 1)
                later_joins += int(base[i + 1] == last[i] + 1)
                contradicted = int(last[i] < base[i + 1] <= last[earlier])
            if later_joins + contradicted > earlier_joins:
                kept[earlier] = False
                top -= 1
            else:
                kept[i] = False
        if kept[i]:
            top += 1
            stack[top] = i
