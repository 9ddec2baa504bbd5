"""Lineage by leader epochs: truncation offsets are those of Kafka's followers; damage in epochs decides nothing."""

from __future__ import annotations

import numpy as np
import pytest

from lastkey.logformat.batches.chunks import NO_END
from lastkey.logformat.layout import BATCH
from lastkey.udfs.merge.lineage import Chain, EpochRun, build_chain, confirmed_epochs, decide, truncation_offset


def chain(*entries: tuple[int, int], complete: bool = True) -> Chain:
    return Chain(entries, complete)


def rows(*entries: tuple[int, int]) -> np.ndarray:
    """Return batches of one record: (offset, epoch)."""
    out = np.zeros(len(entries), BATCH)
    out["base_offset"] = out["last_offset"] = [offset for offset, _ in entries]
    out["partition_leader_epoch"] = [epoch for _, epoch in entries]
    return out


@pytest.mark.parametrize(
    ("follower", "leader", "expected"),
    [
        # the same last epoch: one broker wrote it
        (chain((0, 0), (1, 5)), chain((0, 0), (1, 5)), NO_END),
        # KIP-101, scenario 2: the follower wrote on in epoch 0 where epoch 1 began
        (chain((0, 0)), chain((0, 0), (1, 5)), 5),
        # KIP-279: the leader has no epoch 1, the follower none of 2; both have 0, which the leader ended first
        (chain((0, 0), (1, 10)), chain((0, 0), (2, 7)), 7),
        # ... and which the follower ended first
        (chain((0, 0), (1, 5)), chain((0, 0), (2, 7)), 5),
        # several fast leader changes on both sides
        (chain((0, 0), (1, 5), (3, 9)), chain((0, 0), (2, 6), (4, 8)), 5),
        # nothing in common
        (chain((3, 0)), chain((4, 0)), 0),
        # the leader begins later: what is older may be the same log
        (chain((0, 0), (1, 5)), chain((2, 8), (3, 9)), 8),
        # the leader's checkpoint is lost: a cleaner may have removed the batches of epoch 1
        (chain((0, 0), (1, 5)), chain((0, 0), (2, 7), complete=False), 7),
        (chain(), chain((0, 0)), NO_END),
    ],
)
def test_truncation_offset_equals_that_of_kafka(follower: Chain, leader: Chain, expected: int) -> None:
    assert truncation_offset(follower, leader) == expected


def test_epoch_of_a_single_batch_is_ignored() -> None:
    flipped = [EpochRun(0, 0, 9, 10), EpochRun(1 << 20, 10, 10, 1), EpochRun(0, 11, 20, 10)]
    confirmed = confirmed_epochs([flipped, [EpochRun(0, 0, 20, 21)]], [None, None])
    assert confirmed == {0}
    assert build_chain(flipped, None, confirmed).entries == ((0, 0),)


def test_decreasing_epochs_are_damage() -> None:
    runs = [EpochRun(3, 0, 9, 10), EpochRun(1, 10, 12, 2), EpochRun(4, 13, 20, 8)]
    assert build_chain(runs, None, {1, 3, 4}).entries == ((3, 0), (4, 13))


def test_a_checkpoint_continues_with_later_epochs_of_the_log() -> None:
    runs = [EpochRun(0, 0, 9, 10), EpochRun(2, 10, 12, 3)]
    assert build_chain(runs, ((0, 0),), {0, 2}) == Chain(((0, 0), (2, 10)), True)


def test_most_batches_decide_between_checkpoints_with_one_last_epoch() -> None:
    right, wrong = chain((0, 0), (1, 5), (2, 8)), chain((1, 0), (2, 8))
    batches = rows(*((offset, 0) for offset in range(5)), *((offset, 1) for offset in range(5, 8)), (8, 2))
    assert decide([wrong, right], [10, 9], [batches[8:], batches]).chain == right


def test_older_chain_is_completed_below_that_of_the_leader() -> None:
    leader, follower = chain((2, 8), (3, 9)), chain((0, 0), (1, 5), (2, 8))
    batches = rows((0, 0), (5, 1), (8, 2), (9, 3))
    lineage = decide([leader, follower], [10, 9], [batches[2:], batches[:3]])
    assert lineage.chain.entries == ((0, 0), (1, 5), (2, 8), (3, 9))
    assert lineage.truncation == (NO_END, 9)
