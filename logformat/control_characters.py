"""Characters that act on a terminal, made visible: keys, values and names of an archive may hold any of them.

On a terminal ESC begins commands, and so do the C1 controls (U+0080 to U+009F); characters that set the direction of
text make it read as something else. The set is Unicode's general category Cc except tab and newline, the property
Bidi_Control, the separators U+2028 and U+2029, and surrogates. Surrogates are Python's replacement for bytes of a name
that are not UTF-8.
"""

from __future__ import annotations

import re
from typing import Any, Final

_ACTIVE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    r"""Return the text with each active character as an escape like `\x1b` or `\u202e`."""
    return _ACTIVE.sub(_shown, text)


def visible_bytes(lines: Any) -> bytes:
    """Return UTF-8 text, as bytes or a memoryview, with each active character and each byte that is not UTF-8 as an
    escape.
    """
    return visible(bytes(lines).decode("utf-8", "surrogateescape")).encode()


def _shown(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
