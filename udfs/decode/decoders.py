"""Decoders of keys and values on Arrow columns: Kafka's own deserializers, and other formats in wide use.

    decode(values, "long")             pa.Int64Array; null if a value is null or malformed
    decode(values, "long", errors="fail")          raises at the first malformed value
    find_problems(values, "long")        pa.StringArray: the error in a value; null if there is none

| name | of | as |
|---|---|---|
| string | UTF-8 (StringDeserializer); malformed bytes become U+FFFD, as in Java | string |
| json | one JSON text by RFC 8259, unchanged | string |
| boolean | one byte, 0 or 1 (BooleanDeserializer) | bool |
| short, int, long | 2, 4, 8 bytes, big-endian (ShortDeserializer and so on) | int16, int32, int64 |
| float, double | 4, 8 bytes, IEEE 754, big-endian | float, double |
| uuid | text of 36 characters, as UUIDSerializer writes it, or 16 bytes | string |
| hex, base64 | any bytes | string |
| schema_id | Confluent's wire format: a byte 0, then the schema's id in 4 bytes | int32 |
| schema_guid | a byte 1, then the schema's GUID in 16 bytes | string |
| payload | what follows either prefix | binary |

Newer clients may put the GUID, with its byte 1, into a header `__key_schema_id` or `__value_schema_id`, and write no
prefix before the payload. schema_guid reads the value of such a header too.

Sources: org.apache.kafka.common.serialization of kafka-clients 4.3.0; Confluent's documentation of its wire format and
SchemaId. Avro is in avro.py. Measured on one core, in million values of 100 bytes a second: string 50, schema_id 39,
payload 19, base64 6; long (8 bytes) 165. Only json calls Python for each value: 0.2.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lastkey.logformat.errors import unknown_name
from lastkey.logformat.primitives.binary_arrays import bytes_and_bounds, decode_text, is_bytes, whole_array
from lastkey.udfs.decode.base64_kernels import write_base64

_MAX_TEXT_BYTES: Final = 2**31 - 1


def validity_mask(values: Any) -> NDArray[np.bool_]:
    """Return bool[n]: which values are not null."""
    return np.asarray(values.is_valid())


def value_sizes(values: Any) -> NDArray[Any]:
    """Return int[n]: bytes of each value; -1: null."""
    return np.asarray(pc.fill_null(pc.binary_length(values), -1))


def fixed_width_rows(values: Any, wanted: NDArray[np.bool_], width: int) -> NDArray[np.uint8]:
    """Return the wanted values, all of `width` bytes, as uint8[m, width]. wanted: bool[n], none of them null."""
    chosen = values if wanted.all() else values.filter(pa.array(wanted))
    data, at = bytes_and_bounds(chosen)
    return data[at[0] : at[-1]].reshape(len(chosen), width)


def text_column(text: NDArray[np.uint8], ends: NDArray[np.int64], valid: NDArray[np.bool_]) -> Any:
    """Return uint8[m] as pa.StringArray. ends: int64[n + 1] in it; valid: bool[n]. Raises ValueError from 2 GiB on."""
    if len(text) > _MAX_TEXT_BYTES:
        raise ValueError(f"text of {len(text)} bytes in one column: decode fewer rows at once")
    bits = None if valid.all() else pa.array(valid).buffers()[1]
    return pa.StringArray.from_buffers(len(valid), pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(text), bits)


def no_reasons(values: Any) -> Any:
    """Return a null for each value: none is malformed."""
    return pa.nulls(len(values), pa.string())


Errors = Literal["null", "fail"]
_HEX: Final = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), np.uint16)  # two digits a byte
_BASE64: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_DASHES: Final = np.array([8, 13, 18, 23])
_DIGITS: Final = np.setdiff1d(np.arange(36), _DASHES)
_ID_PREFIX, _GUID_PREFIX = 5, 17
_TO_END: Final = 2**31 - 1  # binary_slice of pyarrow 26 without an end fails where a value ends before the start
_SHOWN_BYTES: Final = 16


class DecodeError(ValueError):
    """A malformed value, with errors="fail"."""


@dataclass(frozen=True)
class Decoder:
    """A way to decode values: `read` returns (values, reasons), each an array as long as its argument."""

    result: Any  # Arrow type
    read: Callable[[Any], tuple[Any, Any]]


def decode(values: Any, name: str, *, errors: Errors = "null") -> Any:
    """Decode a pa.Array of bytes with the decoder `name`. Null and malformed values become null.

    errors="fail": the first malformed value raises DecodeError, which names its row. Malformed UTF-8 then fails too;
    otherwise "string" replaces it, and the value is not null.
    """
    decoded, reasons = _read(values, name)
    if checked_errors(errors) == "fail":
        fail_at_first(values, reasons, name)
    return decoded


def checked_errors(errors: str) -> str:
    """Return `errors`, or raise ValueError if it is not a valid value."""
    if errors not in ("null", "fail"):
        raise ValueError(f'errors: expected "null" or "fail", found {errors!r}')
    return errors


def find_problems(values: Any, name: str) -> Any:
    """Return the error in each value, as pa.StringArray; null if there is none."""
    return _read(values, name)[1]


def fail_at_first(values: Any, reasons: Any, name: str) -> None:
    """Raise DecodeError for the first value that has a reason, if there is one."""
    if reasons.null_count == len(reasons):
        return
    row = pc.index(pc.is_valid(reasons), True).as_py()
    value = values[row].as_py()
    data = value.encode() if isinstance(value, str) else value
    shown = data[:_SHOWN_BYTES].hex() + ("..." if len(data) > _SHOWN_BYTES else "")
    raise DecodeError(f"row {row} cannot be decoded as {name}: {reasons[row]}; its bytes: {shown or 'none'}")


def decoder(name: str) -> Decoder:
    """Return the decoder of a name. Raises ValueError, with the closest match, if it is unknown."""
    if name not in DECODERS:
        raise unknown_name("decoder", name, DECODERS)
    return DECODERS[name]


def as_binary(values: Any) -> Any:
    """Convert a pa.Array or pa.ChunkedArray of bytes or text to pa.BinaryArray. Raises TypeError for others."""
    values = whole_array(values)
    if not is_bytes(values.type) and not pa.types.is_null(values.type):
        raise TypeError(f"expected a column of bytes, found {values.type}")
    if pa.types.is_binary(values.type):
        return values
    return values.view(pa.binary()) if pa.types.is_string(values.type) else values.cast(pa.binary())


def _read(values: Any, name: str) -> tuple[Any, Any]:
    return decoder(name).read(as_binary(values))


# -- text


def _string(values: Any) -> tuple[Any, Any]:
    text = decode_text(values)
    changed = pc.fill_null(pc.not_equal(text.view(pa.binary()), values), False)
    reasons = pc.if_else(changed, "expected UTF-8, found other bytes", pa.scalar(None, pa.string()))
    return text, reasons


def _json(values: Any) -> tuple[Any, Any]:
    """Check each value with a call of the json module, which also states the error."""
    reasons = pa.array([_json_problem(value) for value in values.to_pylist()], pa.string())
    whole = pc.if_else(reasons.is_null(), values, pa.scalar(None, pa.binary()))
    return whole.view(pa.string()), reasons


def _json_problem(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        json.loads(value.decode("utf-8"), parse_constant=_no_json)
    except RecursionError:
        return "expected JSON, found it nested too deeply to read"
    except ValueError as error:  # json.JSONDecodeError, UnicodeDecodeError and an integer of too many digits
        return f"expected JSON: {error}"
    return None


def _no_json(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _hex(values: Any) -> tuple[Any, Any]:
    data, at = bytes_and_bounds(pc.fill_null(values, b""))
    text = _HEX[data[at[0] : at[-1]]].view(np.uint8)
    return text_column(text, 2 * (at.astype(np.int64) - at[0]), validity_mask(values)), no_reasons(values)


def _base64(values: Any) -> tuple[Any, Any]:
    data, at = bytes_and_bounds(pc.fill_null(values, b""))
    ends = np.zeros(len(at), np.int64)
    np.cumsum((np.diff(at).astype(np.int64) + 2) // 3 * 4, out=ends[1:])
    text = np.empty(ends[-1], np.uint8)
    write_base64(data, at, _BASE64, text)
    return text_column(text, ends, validity_mask(values)), no_reasons(values)


def _uuid(values: Any) -> tuple[Any, Any]:
    sizes = value_sizes(values)
    short, long = sizes == 16, sizes == 36
    text = np.empty((len(values), 36), np.uint8)
    text[short] = _as_uuids(fixed_width_rows(values, short, 16))
    given = fixed_width_rows(values, long, 36)
    lower = given | 0x20  # letters; digits and the dash have this bit already
    digit = ((given >= ord("0")) & (given <= ord("9"))) | ((lower >= ord("a")) & (lower <= ord("f")))
    good = (given[:, _DASHES] == ord("-")).all(axis=1) & digit[:, _DIGITS].all(axis=1)
    text[long] = lower
    valid = short.copy()
    valid[long] = good
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.where(valid, 36, 0), out=ends[1:])
    said = "expected 16 bytes, or a UUID as text in 36, found {}"
    return text_column(text[valid].ravel(), ends, valid), _reasons(values, valid, said)


# -- numbers


def _number(code: str, result: Any) -> Decoder:
    kind = np.dtype(code)
    template = f"expected {kind.itemsize} bytes, found {{}}"

    def read(values: Any) -> tuple[Any, Any]:
        fits = value_sizes(values) == kind.itemsize
        out = np.zeros(len(values), kind.newbyteorder("="))
        out[fits] = fixed_width_rows(values, fits, kind.itemsize).view(kind)[:, 0]
        return pa.array(out, result, mask=~fits), _reasons(values, fits, template)

    return Decoder(result, read)


def _boolean(values: Any) -> tuple[Any, Any]:
    fits = value_sizes(values) == 1
    byte = np.zeros(len(values), np.uint8)
    byte[fits] = fixed_width_rows(values, fits, 1)[:, 0]
    fits &= byte <= 1
    return pa.array(byte == 1, pa.bool_(), mask=~fits), _reasons(values, fits, "expected one byte, 0 or 1, found {}")


# -- Confluent's wire format


def _schema_id(values: Any) -> tuple[Any, Any]:
    has_prefix = _prefixed(values, b"\0", _ID_PREFIX)
    out = np.zeros(len(values), np.int32)
    out[has_prefix] = fixed_width_rows(pc.binary_slice(values, 1, _ID_PREFIX), has_prefix, 4).view(">i4")[:, 0]
    said = "expected a byte 0 and a schema id in 4 bytes, found {}"
    return pa.array(out, pa.int32(), mask=~has_prefix), _reasons(values, has_prefix, said)


def _schema_guid(values: Any) -> tuple[Any, Any]:
    has_prefix = _prefixed(values, b"\1", _GUID_PREFIX)
    text = _as_uuids(fixed_width_rows(pc.binary_slice(values, 1, _GUID_PREFIX), has_prefix, 16))
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.where(has_prefix, 36, 0), out=ends[1:])
    said = "expected a byte 1 and a schema's GUID in 16 bytes, found {}"
    return text_column(text.ravel(), ends, has_prefix), _reasons(values, has_prefix, said)


def _payload(values: Any) -> tuple[Any, Any]:
    by_id, by_guid = _prefixed(values, b"\0", _ID_PREFIX), _prefixed(values, b"\1", _GUID_PREFIX)
    nothing = pa.scalar(None, pa.binary())
    rest = pc.if_else(pa.array(by_id), pc.binary_slice(values, _ID_PREFIX, _TO_END), nothing)
    if by_guid.any():
        rest = pc.if_else(pa.array(by_guid), pc.binary_slice(values, _GUID_PREFIX, _TO_END), rest)
    said = "expected a byte 0 and a schema id, or a byte 1 and a GUID, found {}"
    return rest, _reasons(values, by_id | by_guid, said)


def _prefixed(values: Any, magic: bytes, size: int) -> NDArray[np.bool_]:
    begins = pc.fill_null(pc.equal(pc.binary_slice(values, 0, 1), magic), False)
    return np.asarray(begins) & (value_sizes(values) >= size)


# -- arrays


def _as_uuids(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return uint8[m, 16] as text of UUIDs, uint8[m, 36]."""
    text = np.full((len(rows), 36), ord("-"), np.uint8)
    text[:, _DIGITS] = _HEX[rows].view(np.uint8)
    return text


def _reasons(values: Any, is_valid: NDArray[np.bool_], template: str) -> Any:
    if (is_valid | ~validity_mask(values)).all():
        return no_reasons(values)
    before, after = template.split("{}")
    first, _ = _hex(pc.binary_slice(values, 0, 1))
    sizes = pc.binary_length(values)
    begin = pc.binary_join_element_wise(sizes.cast(pa.string()), " bytes, the first 0x", first, "")
    reason = pc.binary_join_element_wise(before, pc.if_else(pc.equal(sizes, 0), "0 bytes", begin), after, "")
    return pc.if_else(pa.array(is_valid), pa.scalar(None, pa.string()), reason)


DECODERS: Final = {
    "string": Decoder(pa.string(), _string),
    "json": Decoder(pa.string(), _json),
    "boolean": Decoder(pa.bool_(), _boolean),
    "short": _number(">i2", pa.int16()),
    "int": _number(">i4", pa.int32()),
    "long": _number(">i8", pa.int64()),
    "float": _number(">f4", pa.float32()),
    "double": _number(">f8", pa.float64()),
    "uuid": Decoder(pa.string(), _uuid),
    "hex": Decoder(pa.string(), _hex),
    "base64": Decoder(pa.string(), _base64),
    "schema_id": Decoder(pa.int32(), _schema_id),
    "schema_guid": Decoder(pa.string(), _schema_guid),
    "payload": Decoder(pa.binary(), _payload),
}
