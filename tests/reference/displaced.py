"""Slow twin of udfs.merge.order_kernels: which batches stay when base offsets do not rise."""

from __future__ import annotations


def kept_batches(ranges: list[tuple[int, int]], floor: int) -> list[tuple[int, int]]:
    """Return the (base, last) offsets that stay. Of two batches that contradict each other the one goes that joins
    fewer neighbours; of two that join as many, the earlier one if the next batch contradicts it too, or there is none.
    """
    stay: list[tuple[int, int]] = []
    for i, one in enumerate(ranges):
        following = ranges[i + 1] if i + 1 < len(ranges) else None
        if one[0] < floor:
            continue
        while stay and one[0] <= stay[-1][1]:
            before = stay[-2][1] if len(stay) > 1 else floor - 1
            if _joins(one, before, following) + _is_contradicted(stay[-1], one, following) > _joins(
                stay[-1], before, following
            ):
                stay.pop()
            else:
                break
        else:
            stay.append(one)
    return stay


def _joins(one: tuple[int, int], before: int, following: tuple[int, int] | None) -> int:
    return (one[0] == before + 1) + (following is not None and following[0] == one[1] + 1)


def _is_contradicted(earlier: tuple[int, int], one: tuple[int, int], following: tuple[int, int] | None) -> int:
    return int(following is None or one[1] < following[0] <= earlier[1])
