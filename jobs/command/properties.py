"""Java's properties: a broker's server.properties, and the file of --command-config. Source: java.util.Properties."""

from __future__ import annotations

import re
from typing import Final

from lastkey.jobs.errors import CONFIG_FILE

_KEY: Final = re.compile(r"((?:\\.|[^\\=:\s])+)[ \t\f]*(?:[=:][ \t\f]*)?(.*)", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LETTERS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str, path: str) -> dict[str, str]:
    """Return the settings of a file. Raise CONFIG_FILE for a line without a name, or a malformed escape."""
    out: dict[str, str] = {}
    lines = iter(enumerate(text.splitlines(), 1))
    for number, raw in lines:
        line = raw.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        while _continues(line):
            line = line[:-1] + next(lines, (0, ""))[1].lstrip(" \t\f")
        match = _KEY.fullmatch(line)
        if match is None or re.search(r"(?<!\\)(?:\\\\)*\\u(?![0-9a-fA-F]{4})", line):
            raise CONFIG_FILE(path=f"{path}, line {number}", expected="NAME=VALUE", found=repr(_name(line)))
        out[_unescaped(match[1])] = _unescaped(match[2])
    return out


def _name(line: str) -> str:
    """Return the beginning of a line, up to its value, which may be secret."""
    return re.split(r"[=:\s]", line, maxsplit=1)[0]


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda m: chr(int(m[1][1:], 16)) if len(m[1]) == 5 else _LETTERS.get(m[1], m[1]), text)
