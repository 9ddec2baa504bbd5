"""Java's `new String(bytes, UTF_8)`, plainly: by trying what is right, and counting what one U+FFFD stands for.

Source: the documentation of CharsetDecoder's malformed-input action REPLACE, and what JDK 17 does where that leaves a
choice: Unicode's "maximal subpart", but a surrogate is one piece, and so is an unfinished sequence at the end.
"""

from __future__ import annotations

REPLACEMENT = "\ufffd"
# first byte -> (length, range of the second byte)
_SEQUENCES = {
    **dict.fromkeys(range(194, 224), (2, 128, 191)),
    **dict.fromkeys(range(224, 240), (3, 128, 191)),
    0xE0: (3, 0xA0, 0xBF),
    **dict.fromkeys(range(241, 244), (4, 128, 191)),
    0xF0: (4, 0x90, 0xBF),
    0xF4: (4, 0x80, 0x8F),
}


def decode(data: bytes) -> str:
    """Text of bytes."""
    out, at = [], 0
    while at < len(data):
        size = _piece(data[at:])
        try:
            out.append(data[at : at + size].decode())
        except UnicodeDecodeError:
            out.append(REPLACEMENT)
        at += size
    return "".join(out)


def _piece(data: bytes) -> int:
    """Bytes of the first character, or of what the first replacement stands for."""
    if data[0] not in _SEQUENCES:
        return 1
    length, low, high = _SEQUENCES[data[0]]
    for i in range(1, length):
        if i == len(data):
            return i
        if not (low if i == 1 else 0x80) <= data[i] <= (high if i == 1 else 0xBF):
            return i
    return length
