"""Arrow rows as lines of JSON, one object a line, built by column: no Python object for a value.

Null fields are written. Bytes become base64, timestamps ISO 8601 in UTC with milliseconds; NaN and infinite numbers
become text. Strings are escaped as RFC 8259 demands and no further.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from lastkey.udfs.decode.decoders import decode

_TEXT: Final = pa.large_string()  # text of a batch may exceed 2 GiB
_SHORT: Final = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_CONTROL: Final = {char: _SHORT.get(char, f"\\u{ord(char):04X}") for char in map(chr, range(32))}
_LAST_YEAR: Final = 9999  # later ones have a sign, as ISO 8601 demands


def json_lines(rows: Any) -> memoryview:
    """Return a pa.RecordBatch as the bytes of its lines."""
    names = [f'{"," if number else "{"}"{name}":' for number, name in enumerate(rows.schema.names)]
    parts = [part for name, values in zip(names, rows.columns, strict=True) for part in (name, json_texts(values))]
    return _joined_bytes(_joined(*parts, "}\n"))


def json_texts(values: Any) -> Any:
    """Return each value of a column as its JSON text (pa.LargeStringArray without nulls)."""
    return pc.fill_null(_texts(values), pa.scalar("null", _TEXT))


def _texts(values: Any) -> Any:
    kind = values.type
    if pa.types.is_list(kind):
        return _lists(values)
    if pa.types.is_struct(kind):
        fields = [
            part for i, field in enumerate(kind) for part in (f'"{field.name}":', json_texts(values.field(i)), ",")
        ]
        return _joined("{", *fields[:-1], "}")
    if pa.types.is_binary(kind):
        return _joined('"', decode(values, "base64").cast(_TEXT), '"')
    if pa.types.is_string(kind):
        return _joined('"', _escaped(values.cast(_TEXT)), '"')
    if pa.types.is_timestamp(kind):
        return _joined('"', _moments(values), '"')
    if pa.types.is_floating(kind):
        names = pc.if_else(pc.is_nan(values), '"NaN"', pc.if_else(pc.less(values, 0), '"-Infinity"', '"Infinity"'))
        return pc.if_else(pc.is_finite(values), values.cast(_TEXT), names.cast(_TEXT))
    return values.cast(_TEXT)


def _lists(values: Any) -> Any:
    texts = pa.LargeListArray.from_arrays(values.offsets.cast(pa.int64()), json_texts(values.values))
    joined = _joined("[", pc.binary_join(texts, pa.scalar(",", _TEXT)), "]")
    return pc.if_else(values.is_valid(), joined, pa.scalar(None, _TEXT))


def _moments(values: Any) -> Any:
    """Return timestamps of UTC as text."""
    whole = values.cast(pa.timestamp("ms"), safe=False)
    sign = pc.if_else(pc.greater(pc.year(whole), _LAST_YEAR), "+", "")
    return _joined(sign.cast(_TEXT), pc.strftime(whole, "%Y-%m-%dT%H:%M:%SZ").cast(_TEXT))


def _escaped(texts: Any) -> Any:
    for pattern, changes in (('["\\\\]', {"\\": "\\\\", '"': '\\"'}), ("[\\x00-\\x1f]", _CONTROL)):
        if pc.any(pc.match_substring_regex(texts, pattern)).as_py():
            for char, escape in changes.items():
                texts = pc.replace_substring(texts, char, escape)
    return texts


def _joined(*parts: Any) -> Any:
    """Join columns and texts by row; null where a column is."""
    return pc.binary_join_element_wise(
        *(pa.scalar(part, _TEXT) if isinstance(part, str) else part for part in parts), pa.scalar("", _TEXT)
    )


def _joined_bytes(texts: Any) -> memoryview:
    """Return the bytes of texts without nulls, one behind the other."""
    _, offsets, data = texts.buffers()
    at = memoryview(offsets).cast("q")
    return memoryview(data)[at[texts.offset] : at[texts.offset + len(texts)]]
