"""What is made from the declarations of options and settings: `python -m docs.option_tables` writes it.

The tables of options on jobs/COMMANDS.md, those of settings on conf/SETTINGS.md, each between
`<!-- options of NAME, by docs/option_tables.py -->` and `<!-- until here -->`, and the whole of conf/cleaner.toml. A
test compares the files with what this module makes.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from lastkey.jobs import api, api_audit  # noqa: F401 - they declare the commands
from lastkey.jobs.command.config import JobSettings, TopicSettings
from lastkey.jobs.command.declare import Value, values_of
from lastkey.jobs.command.functions import COMMANDS
from lastkey.jobs.policies.toml_text import toml_value

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "jobs" / "COMMANDS.md"
SETTINGS_PAGE: Final = ROOT / "conf" / "SETTINGS.md"
SETTINGS_FILE: Final = ROOT / "conf" / "cleaner.toml"
EVERY: Final = "every job"
SETTINGS: Final = {"defaults": TopicSettings, "job": JobSettings}  # table of a settings file -> its declaration
_BLOCK: Final = re.compile(
    r"(?<=<!-- )(options|settings) of ([a-z -]+)(, by docs/option_tables\.py -->\n).*?(?=<!-- until here -->)",
    re.DOTALL,
)
_HEAD: Final = """\
# Every setting, with its unit, its default and its effect. As it is, this file changes nothing:
# ./spark-submit.sh compact ARCHIVE --store STORE --config conf/cleaner.toml
# Names, defaults and ranges are Kafka's (4.3 and 4.4), unless the text says "Ours". An unknown name fails.
# python -m docs.option_tables makes this file from jobs/command/config.py.

# ---- Settings that change the result, for every topic. [topics."GLOB"] tables override them. ----
[defaults]
"""
_JOB: Final = """
# ---- Settings that change only speed and memory: the same input gives the same bytes with any value. ----
[job]
"""


def page(text: str) -> str:
    """Return a page with its tables made again."""
    return _BLOCK.sub(lambda found: f"{found[1]} of {found[2]}{found[3]}\n{_TABLES[found[1]](found[2])}\n", text)


def made_files() -> dict[Path, str]:
    """Return every file that has something of this module's, as it should be."""
    pages = {path: page(path.read_text(encoding="utf-8")) for path in (PAGE, SETTINGS_PAGE)}
    return {**pages, SETTINGS_FILE: settings_file()}


def options_table(name: str) -> str:
    """Return the table of a command's options, or of those of every command."""
    if name == EVERY:
        return _table(value for value in COMMANDS["compact"].values if value.common)
    return _table(value for value in COMMANDS[name].values if not (value.common or value.argument))


def settings_table(name: str) -> str:
    """Return the table of the settings of a table of the settings file."""
    rows = (f"| `{v.flag}` | `{toml_of(v)}` | {_cell(v.help)} |\n" for v in values_of(SETTINGS[name]))
    return "".join(["| setting | default | |\n|---|---|---|\n", *rows])


_TABLES: Final = {"options": options_table, "settings": settings_table}


def settings_file() -> str:
    """Return the settings file that has every setting at its default, each below its documentation."""
    defaults, job = ("".join(map(_lines, values_of(declaration))) for declaration in SETTINGS.values())
    return f"{_HEAD}{defaults}{_JOB}{job}"


def _lines(value: Value[Any, Any]) -> str:
    unit = f", in {value.metavar}" if value.kind.allowed.startswith("a whole number") else ""
    text = f"{value.help} {value.note}".rstrip() + f" Value: {value.kind.allowed}{unit}. Default: {toml_of(value)}."
    comment = textwrap.fill(text, 118, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    return f'\n{comment}\n"{value.flag}" = {toml_of(value)}\n'


def toml_of(value: Value[Any, Any]) -> str:
    """Return the default of a setting as TOML writes it."""
    return toml_value(",".join(value.default) if isinstance(value.default, tuple) else value.default)


def _table(values: Iterable[Value[Any, Any]]) -> str:
    return "".join(["| option | |\n|---|---|\n", *(f"| {_names(value)} | {_text(value)} |\n" for value in values)])


def _names(value: Value[Any, Any]) -> str:
    if value.kind.is_flag:
        return f"`{value.flag}`, `--no-{value.flag[2:]}`" if value.negative else f"`{value.flag}`"
    return _cell(f"`{value.flag} {value.metavar}`")


def _text(value: Value[Any, Any]) -> str:
    needed = "Required. " if value.required else ""
    default = f" Default: {value.shown_default}." if value.shown_default else ""
    note = f" {value.note}" if value.note else ""
    return _cell(f"{needed}{value.help}{default}{note}").rstrip(".")


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


if __name__ == "__main__":
    for path, content in made_files().items():
        path.write_text(content, encoding="utf-8")
