"""Kinds of errors: one table that contains every raised error."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path
from string import Formatter

import pytest

from lastkey.jobs import errors
from lastkey.jobs.errors import KINDS, JobError, Kind

ROOT = Path(__file__).resolve().parents[2]
NAMES = {name: kind for name, kind in vars(errors).items() if isinstance(kind, Kind)}
OWN = {kind.error_class.__name__: kind for kind in KINDS.values() if kind.name == kind.error_class.__name__}
WHOLE = re.compile(r"[A-Z\-`_.].*\.", re.DOTALL)


def _fields(kind: Kind[JobError]) -> set[str]:
    return {field for text in (kind.template, kind.hint) for _, field, _, _ in Formatter().parse(text) if field}


def _calls() -> list[tuple[str, Kind[JobError], ast.Call]]:
    """Return where product code makes an error of a kind."""
    out = []
    for path in (ROOT / "jobs").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                kind = NAMES.get(node.func.id) or OWN.get(node.func.id)
                out += [(f"{path.relative_to(ROOT)}:{node.lineno}", kind, node)] if kind is not None else []
    return out


def test_every_error_has_the_fields_of_its_kind() -> None:
    calls = _calls()
    assert len(calls) > 200
    for where, kind, call in calls:
        keywords = {word.arg for word in call.keywords}
        assert None in keywords or _fields(kind) <= keywords, f"{where}: {kind.name} lacks {_fields(kind) - keywords}"


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_error_of_every_kind_is_one_line_and_can_be_pickled(kind: Kind[JobError]) -> None:
    error = kind(**dict.fromkeys(_fields(kind) | {"position"}, "X"))
    assert type(error) is kind.error_class
    assert error.exit_code in (errors.USAGE, errors.PROBLEMS, errors.CONFLICT, errors.ENVIRONMENT)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.kind, copy.fields, str(copy)) == (type(error), kind, error.fields, str(error))
    assert (copy.line(), copy.to_json()) == (error.line(), error.to_json())
    assert error.to_json()["kind"] == kind.name
    assert WHOLE.fullmatch(kind.cause)


def test_each_error_kind_is_listed_exactly_once() -> None:
    assert len(NAMES) == len(KINDS)
    source = {path: path.read_text() for path in (ROOT / "jobs").rglob("*.py") if path.name != "errors.py"}
    for name, kind in NAMES.items():
        assert kind.name in OWN or any(re.search(rf"\b{name}\b", text) for text in source.values()), name
