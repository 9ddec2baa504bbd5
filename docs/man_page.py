"""The man page docs/lastkey.1, made from the declarations of commands, options and settings: `python -m docs.man_page`.

The wheel installs it as share/man/man1/lastkey.1. A test compares the file with what this module makes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from docs.option_tables import SETTINGS, default_toml
from lastkey.jobs import installation
from lastkey.jobs.command import cli
from lastkey.jobs.command.declare import Value, declared_values
from lastkey.jobs.command.functions import COMMANDS, JOBS

PAGE: Final = Path(__file__).resolve().parent / "lastkey.1"


def man_page() -> str:
    """Return the page as roff, with the macros of man(7)."""
    common = [value for value in COMMANDS["compact"].values if value.common]
    about, _, more = (cli.lastkey.help or "").partition("\n\n")
    codes = re.findall(r"([\d, ]+) ([^;.]+)", cli.EXIT_CODES.partition(":")[2].replace("\n", " "))
    lines = [
        f'.TH LASTKEY 1 "" "Lastkey {installation.version()}" "User Commands"',
        ".SH NAME",
        f"lastkey \\- {_text(about[0].lower() + about[1:].rstrip('.'))}",
        ".SH SYNOPSIS",
        _bold("lastkey"),
        "[OPTION OF SPARK]... COMMAND [ARGUMENT]... [OPTION]...",
        ".SH DESCRIPTION",
        _text(" ".join(more.split())),
        ".SH OPTIONS OF EVERY COMMAND",
        *_options(common),
        ".SH COMMANDS",
        *(line for name in JOBS for line in _command(name)),
        ".SH SETTINGS",
        _text(
            'A TOML file (--config) has them in these tables, [defaults] also as [topics."GLOB"]; --set overrides one.'
        ),
        *(line for table in SETTINGS for line in _settings(table)),
        ".SH EXIT STATUS",
        *(line for code, meaning in codes for line in _item(code.strip(), meaning)),
    ]
    return "\n".join(lines) + "\n"


def _command(name: str) -> Iterator[str]:
    command = COMMANDS[name]
    arguments = " ".join(
        (f"{v.metavar}..." if v.kind.repeats else v.metavar) if v.required else f"[{v.metavar}{'...' * v.kind.repeats}]"
        for v in command.values
        if v.argument
    )
    yield f'.SS "{_text(f"{name} {arguments}".strip())}"'
    yield _text(command.doc.partition("\n\n")[0].replace("\n", " "))
    yield from _options(value for value in command.values if not value.common and not value.argument)


def _options(values: Iterable[Value[Any, Any]]) -> Iterator[str]:
    for value in values:
        shown = value.flag if value.kind.is_flag else f"{value.flag} {value.metavar}"
        no = f", --no-{value.flag[2:]}" if value.negative else ""
        needed = " Required." if value.required else ""
        default = f" Default: {value.shown_default}." if value.shown_default else ""
        yield from _item(shown + no, f"{value.help}{needed}{default}")


def _settings(table: str) -> Iterator[str]:
    yield f'.SS "[{table}]"'
    for value in declared_values(SETTINGS[table]):
        yield from _item(f"{value.flag} = {default_toml(value)}", value.help)


def _item(term: str, text: str) -> Iterator[str]:
    yield from (".TP", _bold(term), _text(text))


def _bold(text: str) -> str:
    return f'.B "{_text(text)}"'


def _text(text: str) -> str:
    """Return text as roff reads it: no request, no macro's quote, and hyphens that can be copied and searched."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    PAGE.write_text(man_page(), encoding="utf-8")
