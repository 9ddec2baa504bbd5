"""Declarations of options: the command line and the Python API take and refuse the same values, and pages show them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import types
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from docs import man_page, option_tables
from lastkey.jobs import api, api_store  # noqa: F401 - they declare the commands
from lastkey.jobs.command import cli, failures, functions
from lastkey.jobs.command.functions import COMMANDS
from lastkey.jobs.errors import JobError
from lastkey.logformat.errors import PlaceError

MOST_IN_HELP, MOST_SLOTS, MOST_NAMES = 15, 198, 80  # in one --help; of all commands together; with a name of its own
# What a command needs beside its required options, as words and as arguments
NEEDED: dict[str, tuple[list[str], dict[str, Any]]] = {
    **{name: (["A"], {"archive": "A"}) for name in ("verify", "convert", "export", "replay")},
    "reindex": (["--check"], {"check": True}),
    "audit keys": (["A", "--audits", "S"], {"archive": "A", "audits": "S"}),
    "audit delivery": (["A", "--audits", "S"], {"archive": "A", "audits": "S"}),
    "audit mirror": (["--audits", "S"], {"audits": "S"}),
    "audit failover": (["--audits", "S"], {"audits": "S"}),
    "inspect": (["A"], {"paths": "A"}),
    "lookup": (["A", "--sizing"], {"archive": "A", "sizing": True}),
}  # fmt: skip
OPTIONS = {
    f"{name} {value.flag}": (name, value)
    for name, command in COMMANDS.items()
    for value in command.values
    if not value.argument and hasattr(command.options, value.name) and value.name != "progress"
}
WORDS = st.one_of(
    st.sampled_from(
        ["", "0", "1", "-1", "3", "0.5", "1.5", "-0.1", "nan", "inf", "1e400", "1_0", " 2 ", "0x1", "a", "a,b", ",",
         "[a", "fail", "accept", "drop", "compact", "spark", "threads", "text", "hex", "v2", "v3", "90s", "1h30m", "0s",
         "5-3", "0,3-5", "..", "1..2", "2..1", "2026-11-21", "1732190700000", "99999999999999999999", "s3://b/x",
         "x://b", "key=a", "t=3", "t=0", "s3://id:word@b/a", "\udcff", "a=b", "(=b", "delta", "read_committed"]
    ),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4),
    st.integers().map(str),
    st.floats().map(str),
)  # fmt: skip


class _Seen(Exception):
    def __init__(self, options: Any) -> None:
        self.options = options


@pytest.fixture(scope="module", autouse=True)
def _job():
    """Job that every command runs in place of its module: it raises the options that reach it."""
    module = types.ModuleType("seeing_job")

    def run(options, progress, *_):
        raise _Seen(options)

    module.run = run
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "seeing_job", module)
        patch.setattr(functions, "JOBS", dict.fromkeys(functions.JOBS, "seeing_job"))
        yield


def _required(name: str, but: str) -> tuple[list[str], dict[str, Any]]:
    """Return the least that a command needs without an option, as words and as arguments."""
    words, arguments = NEEDED.get(name, ([], {}))
    words, arguments = [*words], {key: given for key, given in arguments.items() if key != but}
    if words[:1] == [f"--{but}"] or words[1:2] == [f"--{but}"]:
        words = words[: words.index(f"--{but}")]
    for value in COMMANDS[name].values:
        if value.required and value.name != but:
            word = value.kind.choices[0] if value.kind.choices else "1"
            words += [word] if value.argument else [value.flag, word]
            arguments[value.name] = value.kind.from_text(value, word)
    return words, arguments


def _outcome(name: str, option: str, call) -> tuple[str, Any]:
    """Return whether values are taken, and the options, or the message. The clock is no part of them."""
    try:
        call()
    except _Seen as seen:
        clock = {"now_ms"} if option != "now_ms" else set()
        return "taken", {key: held for key, held in vars(seen.options).items() if key not in clock}
    except (JobError, PlaceError) as error:
        known = failures.known_error(error)
        assert known is not None
        return "refused", known.line()
    except TypeError as error:
        return "wrong type", str(error)
    raise AssertionError(f"{name}: neither taken nor refused")


def _both(name: str, option: str, words: list[str], arguments: dict[str, Any]) -> tuple[Any, Any]:
    def typed():
        cli._check_words([*name.split(), *words])
        cli.lastkey.main([*name.split(), *words], standalone_mode=False)

    called = _outcome(name, option, lambda: COMMANDS[name].function(**arguments))
    return _outcome(name, option, typed), called


@pytest.mark.parametrize("which", OPTIONS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(word=WORDS)
def test_command_line_and_python_accept_and_refuse_the_same_values(which: str, word: str) -> None:
    name, value = OPTIONS[which]
    words, arguments = _required(name, value.name)
    if value.kind.is_flag:
        typed, called = _both(name, value.name, [*words, value.flag], {**arguments, value.name: True})
        assert typed == called
        return
    try:
        argument = value.kind.from_text(value, word)
    except JobError:  # no number: a program gives text of another type
        argument = word
    typed, called = _both(name, value.name, [*words, value.flag, word], {**arguments, value.name: argument})
    assert typed == called or (typed[0], called[0]) == ("refused", "wrong type")


@pytest.mark.parametrize("name", COMMANDS)
def test_docstring_of_a_function_has_every_parameter(name: str) -> None:
    docstring = COMMANDS[name].function.__doc__
    assert all(re.search(rf"^    {value.name}: ", docstring, re.MULTILINE) for value in COMMANDS[name].values
               if hasattr(COMMANDS[name].options, value.name))  # fmt: skip


# -- help


def _help(name: str, option: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    return CliRunner().invoke(cli.lastkey, [*name.split(), option]).stdout


def _rows(text: str) -> list[str]:
    return re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_common_options_and_help_all_shows_all(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, everything = (_help(name, option, monkeypatch) for option in ("--help", "--help-all"))
    assert len(_rows(usual)) <= MOST_IN_HELP
    assert set(_rows(everything)) == {v.flag for v in COMMANDS[name].values if not (v.argument or v.common)}
    assert set(_rows(usual)) <= set(_rows(everything))
    for text in (usual, everything):
        assert max(map(len, text.splitlines())) <= 80
        assert "\xa0" not in text
    common = [v.flag for v in COMMANDS[name].values if v.common]
    assert ", ".join(common) in " ".join(everything.split())


def test_number_of_options_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted as a user sees them: those of each --help-all, and those of every command once."""
    of_commands = [row for name in COMMANDS for row in _rows(_help(name, "--help-all", monkeypatch))]
    common = _rows(_help("", "--help", monkeypatch).partition("Options of every command")[2])
    assert len(of_commands) + len(common) <= MOST_SLOTS
    assert len({*of_commands, *common}) <= MOST_NAMES


# -- the page


def test_settings_file_is_generated_from_the_declarations() -> None:
    text = option_tables.SETTINGS_FILE.read_text(encoding="utf-8")
    assert text == option_tables.settings_file(), "python -m docs.option_tables writes it"


def test_man_page_is_generated_from_the_declarations_and_valid_for_groff() -> None:
    text = man_page.man_page()
    assert man_page.PAGE.read_text(encoding="utf-8") == text, "python -m docs.man_page writes it"
    sections = re.findall(r"^\.SH (.*)$", text, re.MULTILINE)
    assert [*sections[:3], sections[-1]] == ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS"]
    assert len(re.findall(r"^\.SS ", text, re.MULTILINE)) == len(COMMANDS) + len(option_tables.SETTINGS)
    assert not re.search(r"^(?!\.(TH|SH|SS|TP|B) |\.TP$)[.']", text, re.MULTILINE), "no other request"
    if shutil.which("groff"):
        completed = subprocess.run(
            ["groff", "-Tutf8", "-man", "-ww", str(man_page.PAGE)], capture_output=True, check=True
        )
        assert completed.stderr == b""
        shown = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", completed.stdout.decode())
        assert all(flag in shown for flag in ("--store STORE", "--no-progress", "cleanup.policy", "130"))


def test_removed_option_error_names_its_replacement() -> None:
    flags = {value.flag for command in COMMANDS.values() for value in command.values if not value.argument}
    assert flags.isdisjoint(failures.INSTEAD)
    named = {word for text in failures.INSTEAD.values() for word in re.findall(r"--[a-z-]+", text)}
    assert named <= flags
