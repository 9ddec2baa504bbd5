"""Import and call of every kernel of a compaction, so that numba compiles it and keeps it for later runs.

numba reads a kernel from its cache at the first call, so `load_kernels` calls each one once, on one empty batch.
"""

from __future__ import annotations

import numpy as np

from lastkey.logformat.batches.bodies import BodyLoader, Run
from lastkey.logformat.batches.checksum_kernels import extend_by_batches
from lastkey.logformat.batches.chunks import NO_END, Chunk, ChunkBuffer
from lastkey.logformat.batches.walk_kernels import walk_batches
from lastkey.logformat.layout import BATCH, BATCH_OVERHEAD, CODEC_SNAPPY
from lastkey.logformat.primitives.codec import MANY_A_CALL, Scratch, pack_bodies, unpack_many
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.logformat.side_files.index_builder import IndexBuilder
from lastkey.logformat.side_files.producer_state import ProducerState, merge, no_producers, summarize
from lastkey.udfs.compact.clean.clean_batches import Pass, Tally, clean_chunk
from lastkey.udfs.compact.clean.key_kernels import SLOT, enter_keys, mark_last_offsets, rehash
from lastkey.udfs.compact.clean.rebuild_kernels import CLEANED, assemble_batches, digest_records, encode_bodies
from lastkey.udfs.compact.cleaner import LastBatches, Rules
from lastkey.udfs.compact.one_task import compact_partition  # noqa: F401 - so that workers need not
from lastkey.udfs.compact.scan.transactions import discardable_batches
from lastkey.udfs.compact.split.survivor_kernels import collect_survivors, mark_first, mark_survivors
from lastkey.udfs.compact.verdicts import EMPTIED
from lastkey.udfs.segments import TXN_BATCH
from lastkey.udfs.yields.key_filter import filter_of, holds


def load_kernels() -> None:
    """Call every kernel of a compaction on a log of one empty batch."""
    offsets, flags = np.zeros(1, np.int64), np.zeros(1, np.bool_)
    header = np.zeros(1, BATCH)
    header["magic"], header["producer_id"] = 2, 0
    cleaned = np.zeros(1, CLEANED)
    cleaned["outcome"] = EMPTIED
    raw = np.zeros(BATCH_OVERHEAD, np.uint8)
    assemble_batches(raw, 0, header, cleaned, raw, offsets, raw)
    batches = np.empty(1, BATCH)
    walk_batches(raw, len(raw), 0, -1, NO_END, True, batches)
    crc32c_extend(0, raw)
    extend_by_batches(0, raw, np.array([len(raw)]))
    packed = Scratch()
    for codec in MANY_A_CALL:
        ends = pack_bodies(np.array([codec]), raw, np.array([0, len(raw)]), packed, 0)
        unpack_many(codec, packed.array, offsets, ends, Scratch(), 0, 1, len(raw), offsets.copy())
    unpack_many(CODEC_SNAPPY, raw, offsets[:0], offsets[:0], Scratch(), 0, 1, 1, offsets[:0])
    indexes = IndexBuilder(0, 4096, 1 << 20)
    indexes.append(batches["last_offset"], batches["size"], batches["max_timestamp"])
    indexes.finish()
    summary = merge(no_producers(), summarize(batches))
    state = ProducerState()
    state.apply(summary)
    aborted = state.apply(summary)[:0]
    discardable_batches(np.zeros(1, TXN_BATCH), np.zeros(0, aborted.dtype))
    slots = np.zeros(1 << 16, SLOT)
    rehash(slots, slots.copy())
    enter_keys(slots[:0], slots, 0, 0)
    holds(filter_of(np.empty(0, np.uint64)), np.empty(0, np.uint64))

    def mark_last(run: Run, is_last: np.ndarray) -> None:
        mark_last_offsets(run.batches, run.bodies, run.wanted, run.spans, 0, slots, 0, is_last, 0)
        collect_survivors(run.bodies, run.spans, is_last, np.empty((0, 2), np.uint64), offsets)
        received = np.frombuffer(b"", np.uint64).reshape(0, 2)  # read-only, as from Arrow: another type to numba
        mark_first(received, is_last[:0], slots, is_last[:0])
        mark_survivors(run.batches, run.bodies, run.wanted, run.spans, offsets, 0, is_last)
        kept, out = np.empty(0, np.bool_), np.empty(0, np.uint8)
        rows = np.empty(len(run.spans), np.int32)
        encode_bodies(
            run.raw, run.scratch, run.batches, run.bodies, cleaned, flags, run.spans, kept, rows, out, offsets
        )
        digest_records(run.raw, run.scratch, run.batches, run.bodies, run.spans, kept, flags, rows)

    nobody = LastBatches(offsets[:0], offsets[:0], np.empty(0, np.int16))
    rules = Rules(0, 0, 1, 0, False, nobody, offsets[:0], flags[:0])
    loader = BodyLoader(max_batch_bytes=1 << 20, secret=(0, 1))
    one = Pass(mark_last, loader, ChunkBuffer(1), Tally())
    for _ in clean_chunk(one, Chunk(0, raw, batches), rules, True, backwards=True):
        pass


load_kernels()
