"""Option tables of jobs/COMMANDS.md, made from the declarations: `python -m docs.option_tables` writes them.

A table stands between `<!-- options of NAME, by docs/option_tables.py -->` and `<!-- until here -->`. A test compares
the page with what this module makes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from lastkey.jobs import api, api_audit  # noqa: F401 - they declare the commands
from lastkey.jobs.command.declare import Value
from lastkey.jobs.command.functions import COMMANDS

PAGE: Final = Path(__file__).resolve().parent.parent / "jobs" / "COMMANDS.md"
EVERY: Final = "every job"
_BLOCK: Final = re.compile(
    r"(?<=<!-- options of )([a-z -]+)(, by docs/option_tables\.py -->\n).*?(?=<!-- until here -->)", re.DOTALL
)


def page(text: str) -> str:
    """Return a page with its tables made again."""
    return _BLOCK.sub(lambda found: f"{found[1]}{found[2]}\n{table(found[1])}\n", text)


def table(name: str) -> str:
    """Return the table of a command's options, or of those of every command."""
    if name == EVERY:
        return _table(value for value in COMMANDS["compact"].values if value.common)
    return _table(value for value in COMMANDS[name].values if not (value.common or value.argument))


def _table(values: Iterable[Value[Any, Any]]) -> str:
    return "".join(["| option | |\n|---|---|\n", *(f"| {_names(value)} | {_text(value)} |\n" for value in values)])


def _names(value: Value[Any, Any]) -> str:
    if value.kind.is_flag:
        return f"`{value.flag}`, `--no-{value.flag[2:]}`" if value.negative else f"`{value.flag}`"
    return f"`{value.flag} {value.metavar}`".replace("|", r"\|")


def _text(value: Value[Any, Any]) -> str:
    needed = "Required. " if value.required else ""
    default = f" Default: {value.shown_default}." if value.shown_default else ""
    note = f" {value.note}" if value.note else ""
    return f"{needed}{value.help}{default}{note}".replace("|", r"\|").rstrip(".")


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
