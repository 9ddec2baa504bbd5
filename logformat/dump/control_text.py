"""Text for control records: markers of transactions, and control records of a KRaft log."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lastkey.logformat.dump.joined_text import joined, names_of
from lastkey.logformat.messages.control_records import control_record_text
from lastkey.logformat.primitives.binary_arrays import spans_of

END_TXN_MARKERS: Final = ("ABORT", "COMMIT")  # by control type
_CONTROL_TYPES: Final = ("ABORT", "COMMIT", "LEADER_CHANGE", "SNAPSHOT_HEADER", "SNAPSHOT_FOOTER", "KRAFT_VERSION",
                         "KRAFT_VOTERS")  # fmt: skip


def markers_of(records: Any) -> tuple[Any, Any]:
    """Return each record's control type by name, and its coordinator's epoch; null where there is none."""
    control = np.asarray(records.column("control"))
    kinds, _ = _number_at(records.column("key"), 2, ">i2")
    epochs, known = _number_at(records.column("value"), 2, ">i4")
    marker = control & (kinds >= 0) & (kinds < len(END_TXN_MARKERS))
    number = np.minimum(np.where(kinds < 0, len(_CONTROL_TYPES), kinds), len(_CONTROL_TYPES))
    names = names_of((*_CONTROL_TYPES, "UNKNOWN"), number)
    said = pc.if_else(pa.array(marker), names, joined(names, "(", kinds, ")"))
    return pc.if_else(pa.array(control), said, None), pa.array(epochs, pa.int32(), mask=~(marker & known))


def _number_at(values: Any, first: int, kind: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return (int64[n], bool[n]): the number at byte `first` of each value, or -1, and whether it is there."""
    data, at = spans_of(values)
    size = np.dtype(kind).itemsize
    there = (np.diff(at) >= first + size) & np.asarray(values.is_valid())
    out = np.full(len(values), -1, np.int64)
    places = at[:-1][there].astype(np.int64)[:, None] + first + np.arange(size)
    out[there] = data[places].view(kind)[:, 0]
    return out, there


def control_text(records: Any) -> Any:
    """Return the text after the line of each control record; for other records it means nothing."""
    kind, epoch = markers_of(records)
    marker = joined(" endTxnMarker: ", pc.fill_null(kind, ""), " coordinatorEpoch: ", pc.fill_null(epoch, -1))
    other = pc.coalesce(_kraft_records(records), joined(" controlType: ", pc.fill_null(kind, "")))
    return pc.if_else(pc.is_valid(epoch), marker, other)


def _kraft_records(records: Any) -> Any:
    """Return the text of a KRaft log's control records; null elsewhere. A Python loop, over those records only."""
    said = np.full(len(records), None, object)
    kinds, _ = _number_at(records.column("key"), 2, ">i2")
    rows = np.flatnonzero(np.asarray(records.column("control")) & (kinds >= len(END_TXN_MARKERS)))
    values = records.column("value").take(pa.array(rows)).to_pylist()
    for row, kind, value in zip(rows.tolist(), kinds[rows].tolist(), values, strict=True):
        text = control_record_text(kind, value)
        said[row] = None if text is None else f" {text}"
    return pa.array(said, pa.string())
