"""Java's `new String(bytes, UTF_8)` in plain steps: decodes valid sequences, counts the bytes that a U+FFFD replaces.

Source: the documentation of CharsetDecoder's malformed-input action REPLACE. It leaves a choice, in which JDK 17
follows Unicode's "maximal subpart". But JDK 17 takes a surrogate for one piece, and an unfinished sequence at the end
too.
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
    """Return the text of bytes."""
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
    """Return the number of bytes of the first character, or of the piece that the first U+FFFD replaces."""
    if data[0] not in _SEQUENCES:
        return 1
    length, low, high = _SEQUENCES[data[0]]
    for i in range(1, length):
        if i == len(data):
            return i
        if not (low if i == 1 else 0x80) <= data[i] <= (high if i == 1 else 0xBF):
            return i
    return length
