"""Tables of options and settings for the reference pages, and conf/cleaner.toml.

`python -m docs.option_tables` writes conf/cleaner.toml; a test compares it.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from docs.tables import table
from lastkey.jobs import api, api_store  # noqa: F401 - they declare the commands
from lastkey.jobs.command.config import JobSettings, TopicSettings
from lastkey.jobs.command.declare import Value, declared_values
from lastkey.jobs.command.functions import COMMANDS
from lastkey.jobs.policies.cluster_configs import toml_value

ROOT: Final = Path(__file__).resolve().parent.parent
SETTINGS_FILE: Final = ROOT / "conf" / "cleaner.toml"
EVERY: Final = "every job"
SETTINGS: Final = {"defaults": TopicSettings, "job": JobSettings}  # table of a settings file -> its declaration
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


def options_table(name: str) -> str:
    """Return the table of a command's usual options, or of those of every command."""
    if name == EVERY:
        return _table(value for value in COMMANDS["compact"].values if value.common)
    return _table(value for value in _own(name) if not value.rare)


def advanced_options_table(name: str) -> str:
    """Return the table of a command's options that only --help-all lists; empty without any."""
    rare = [value for value in _own(name) if value.rare]
    return _table(rare) if rare else ""


def _own(name: str) -> list[Value[Any, Any]]:
    return [value for value in COMMANDS[name].values if not (value.common or value.argument)]


def settings_table(name: str) -> str:
    """Return the table of the settings of a table of the settings file."""
    return table(
        ("setting", "default", "meaning"),
        ((f"`{v.flag}`", f"`{default_toml(v)}`", v.help) for v in declared_values(SETTINGS[name])),
    )


def settings_file() -> str:
    """Return the settings file that has every setting at its default, each below its documentation."""
    defaults, job = ("".join(map(_lines, declared_values(declaration))) for declaration in SETTINGS.values())
    return f"{_HEAD}{defaults}{_JOB}{job}"


def _lines(value: Value[Any, Any]) -> str:
    unit = f", in {value.metavar}" if value.kind.allowed.startswith("a whole number") else ""
    text = (
        f"{value.help} {value.note}".rstrip() + f" Value: {value.kind.allowed}{unit}. Default: {default_toml(value)}."
    )
    comment = textwrap.fill(text, 118, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
    return f'\n{comment}\n"{value.flag}" = {default_toml(value)}\n'


def default_toml(value: Value[Any, Any]) -> str:
    """Return the default of a setting as TOML writes it."""
    return toml_value(",".join(value.default) if isinstance(value.default, tuple) else value.default)


def _table(values: Iterable[Value[Any, Any]]) -> str:
    return table(("option", "meaning"), ((_names(value), _text(value)) for value in values))


def _names(value: Value[Any, Any]) -> str:
    if value.kind.is_flag:
        return f"`{value.flag}`, `--no-{value.flag[2:]}`" if value.negative else f"`{value.flag}`"
    return f"`{value.flag} {value.metavar}`"


def _text(value: Value[Any, Any]) -> str:
    needed = "Required. " if value.required else ""
    default = f" Default: {value.shown_default}." if value.shown_default else ""
    note = f" {value.note}" if value.note else ""
    return f"{needed}{value.help}{default}{note}"


if __name__ == "__main__":
    SETTINGS_FILE.write_text(settings_file(), encoding="utf-8")
