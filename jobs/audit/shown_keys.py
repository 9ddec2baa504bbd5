"""Keys as reports show them: text where they are text, else hex; of hidden ones the hash."""

from __future__ import annotations

from lastkey.logformat.control_characters import visible


def shown_key(key: bytes | None, hidden: bool = False) -> str:
    """Return a key for people: UTF-8 in one line, else 0x and hex; hidden: # and the first half of its hash."""
    if key is None:
        return "(none)"
    if hidden:
        return f"#{key[:8].hex()}"
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return visible(text) if text.isprintable() and text and not text.startswith(("0x", "#")) else f"0x{key.hex()}"
