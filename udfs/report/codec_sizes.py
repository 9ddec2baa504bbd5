"""Bytes of a log with each codec, estimated from a sample of its batches.

Each data batch whose records are read is drawn with the same probability. A hash of its base offset decides, so that a
report is repeatable. The records of the drawn batches are compressed with every codec. Let x be the bytes of a batch's
records, and y its compressed bytes. Sums over the sample give the ratio r = sum(y) / sum(x). The estimate for the log
is r times the bytes of all records: the ratio estimator of sampling theory. Its standard error follows from the
residuals y - r x. The bound that is reported is three standard errors. It is 0 if every batch was drawn. Batches with
far more bytes of records than the mean are all drawn, and add up apart: one that is missed would bias the estimate.

Batches that are not read (of aborted transactions), control batches and batches without records count as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.layout import BATCH_OVERHEAD, CODEC_NAMES, CODEC_NONE, CONTROL_MASK, Levels
from lastkey.logformat.primitives.codec import Scratch, pack_bodies

CODEC_COLUMNS: Final = CODEC_NAMES  # columns of tables with estimates
# Tuned: of 1 GB in batches of 16 KiB the sample takes a twentieth of the profile's time, and its bound is below 1 %
_SAMPLE_BATCHES: Final = 256
_SAMPLE_BYTES: Final = 16 << 20  # size of the sampled batches as stored, at most
_STANDARD_ERRORS: Final = 3
_LARGE: Final = 8  # times the mean of all batches as stored, or of the records of those so far


@dataclass(frozen=True)
class CodecBytes:
    """Bytes of a log if all of its data batches had one codec."""

    codec: str
    bytes: int
    error_bytes: int  # three standard errors of the estimate; 0: exact


class CodecSample:
    """Sample of the batches of a log that is being read."""

    def __init__(self, n_batches: int, n_bytes: int, levels: Levels) -> None:
        """n_batches, n_bytes: of the log. levels: of the codecs."""
        share = min(_SAMPLE_BATCHES / max(n_batches, 1), _SAMPLE_BYTES / max(n_bytes, 1), 1.0)
        self._all, self._below = share >= 1.0, np.uint64(min(int(share * 2**64), 2**64 - 1))
        self._levels, self._scratch = levels, Scratch()
        self._n = self._plain = self._stored = 0  # data batches that were read: number, bytes of records, of batches
        none = np.zeros((0, len(CODEC_NAMES)))
        self._large, self._sample = [none], [none]  # float64[k, codecs]: bytes of records, and compressed ones
        self._large_size = _LARGE * n_bytes / max(n_batches, 1)  # size of a stored batch
        self._large_bytes = 0

    def add(self, run: Run) -> None:
        """Add a run whose wanted batches were read."""
        data = run.wanted & (run.bodies["n_records"] > 0) & (run.batches["attributes"] & CONTROL_MASK == 0)
        sizes = run.bodies["end"] - run.bodies["start"]
        self._n += int(data.sum())
        self._plain += int(sizes[data].sum())
        self._stored += int(run.batches["size"][data].sum())
        large = data & ((sizes * self._n > _LARGE * self._plain) | (run.batches["size"] > self._large_size))
        if self._large_bytes < _SAMPLE_BYTES:
            self._large.append(self._compressed(run, large))
            self._large_bytes += int(sizes[large].sum())
            data &= ~large
        if not self._all:
            data &= _scrambled(run.batches["base_offset"].astype(np.uint64)) < self._below
        self._sample.append(self._compressed(run, data))

    def _compressed(self, run: Run, which: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return float64[k, codecs] of the batches in `which`, bool[n]."""
        bodies = run.bodies[which]
        out = np.zeros((len(bodies), len(CODEC_NAMES)))
        for i, body in enumerate(bodies):  # one at a time: a body may have as many bytes as a task has room for
            records = (run.scratch if body["in_scratch"] else run.raw)[body["start"] : body["end"]]
            out[i, CODEC_NONE] = len(records)
            for codec in range(1, len(CODEC_NAMES)):
                borders = np.array([0, len(records)])
                (out[i, codec],) = pack_bodies(np.array([codec]), records, borders, self._scratch, 0, self._levels)
        return out

    def estimates(self, log_bytes: int) -> tuple[CodecBytes, ...]:
        """Return the estimate for each codec; none if no data batch was read. log_bytes: of the whole log."""
        if not self._n:
            return ()
        sample, large = np.concatenate(self._sample), np.concatenate(self._large)
        n, n_all = len(sample), self._n - len(large)
        plain, drawn = self._plain - float(large[:, CODEC_NONE].sum()), float(sample[:, CODEC_NONE].sum())
        out = []
        for codec, name in enumerate(CODEC_NAMES):
            ratio = float(sample[:, codec].sum()) / drawn if n else 1.0
            estimate = ratio * plain
            error = estimate  # fewer than two batches are no evidence about the others
            if n == n_all or codec == CODEC_NONE:
                error = 0.0
            elif n > 1:
                residuals = sample[:, codec] - ratio * sample[:, CODEC_NONE]
                variance = float((residuals**2).sum()) / (n - 1) * (1 - n / n_all) * n_all**2 / n
                error = min(_STANDARD_ERRORS * math.sqrt(variance), estimate)
            others = log_bytes - self._stored + self._n * BATCH_OVERHEAD + float(large[:, codec].sum())
            out.append(CodecBytes(name, round(others + estimate), math.ceil(error)))
        return tuple(out)


def _scrambled(offsets: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return uint64[n] as the finaliser of splitmix64 does: offsets in equal steps give numbers without a pattern."""
    words = (offsets ^ (offsets >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def sum_of_logs(logs: Iterable[tuple[int, tuple[CodecBytes, ...]]]) -> tuple[CodecBytes, ...]:
    """Return the estimates for several logs together: (bytes of the log, its estimates). A log without estimates counts
    as it is. Errors are independent, so their squares add up.
    """
    n_bytes, squares, any_estimate = dict.fromkeys(CODEC_NAMES, 0), dict.fromkeys(CODEC_NAMES, 0), False
    for log_bytes, estimates in logs:
        by_codec = {estimate.codec: estimate for estimate in estimates}
        any_estimate |= bool(by_codec)
        for codec in CODEC_NAMES:
            estimate = by_codec.get(codec, CodecBytes(codec, log_bytes, 0))
            n_bytes[codec] += estimate.bytes
            squares[codec] += estimate.error_bytes**2
    if not any_estimate:
        return ()
    return tuple(CodecBytes(codec, n_bytes[codec], math.isqrt(squares[codec])) for codec in CODEC_NAMES)
