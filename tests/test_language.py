"""Language of code and pages: words to avoid, beginnings of docstrings, length of lines."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.trees import files_in

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("logformat", "udfs", "jobs", "lastkey")
FOLDERS = (*PRODUCT, "docs", "tests", "examples")
SOURCES = [
    path for path in (*files_in(ROOT, "*.py"), *(p for f in FOLDERS for p in files_in(ROOT / f, "**/*.py")))
    if path != Path(__file__)
]  # fmt: skip
PAGES = [
    *files_in(ROOT, "*.md"),
    *(
        page
        for f in ("logformat", "udfs", "jobs", "docs", "tests", "examples", "notebooks")
        for page in files_in(ROOT / f, "**/*.md")
    ),
]
# Comments of scripts, of Java and C, of configuration; cells of notebooks; templates; the man page; scenarios
OTHERS = [
    *files_in(ROOT, "*.sh"), *files_in(ROOT, "*.toml"), *files_in(ROOT, "*.yml"), ROOT / ".ci" / "run",
    ROOT / "examples" / "airflow" / "bin" / "spark-submit",
    *(
        path
        for suffixes, folders in (
            ("conf properties toml", ("conf",)),
            ("conf html js css 1", ("jobs", "docs")),
            ("yaml yml sh service timer toml in spec Containerfile", ("examples",)),
            ("ipynb", ("notebooks",)), ("sh", ("requirements",)), ("json", ("schemas",)),
            ("java c spec properties xml", ("tests",)), ("txt", ("tests/scenarios",)),
        )
        for folder in folders
        for suffix in suffixes.split()
        for path in sorted((ROOT / folder).rglob(f"*{suffix}" if suffix[0].isupper() else f"*.{suffix}"))
    ),
]  # fmt: skip
# Words that have a term, or a noun that names the thing: "again", "no process", "a user who", "reported", "continues"
WORDS = re.compile(r"\b(anew|nobody|whoever|told|(?:go|goes|went|going) on|stands)\b", re.IGNORECASE)
NAMES = re.compile(r"`[^`]*`|\w+://\S+")  # identifiers in backticks, and URIs: no prose
CLAUSES = ("What", "Whether", "Where", "That", "Of", "How", "Who", "Which", "Those")
LONGEST = 120


def _id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text is not None:
                yield node.body[0].lineno, text


def _comments(source: str) -> Iterator[tuple[int, str, bool]]:
    """Yield line and text of each comment, and whether it continues the comment on the line before."""
    previous = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string, token.line.lstrip().startswith("#") and token.start[0] == previous + 1
            previous = token.start[0]


def _prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield comments, docstrings, and strings of at least three words, with their first lines."""
    for line, text, _ in _comments(source):
        yield line, text
    tree = ast.parse(source)
    yield from _docstrings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _is_sentence(node.value):
            yield node.lineno, node.value


def _is_sentence(text: str) -> bool:
    """Return whether a string has at least three words and is no list of names, such as columns."""
    words = text.split()
    is_list = all(re.fullmatch(r"[\w.=]+", word) for word in words) and sum("_" in word for word in words) >= 2
    return len(words) >= 3 and not is_list


def _found(text: str) -> list[str]:
    return WORDS.findall(NAMES.sub("", text))


@pytest.mark.parametrize("folder", FOLDERS)
def test_comments_docstrings_and_messages_avoid_these_words(folder: str) -> None:
    violations = []
    for path in (path for path in SOURCES if path.relative_to(ROOT).parts[0] == folder):
        source = path.read_text(encoding="utf-8")
        if WORDS.search(source):  # few files need a syntax tree
            violations += [f"{_id(path)}:{line}: {word}" for line, text in _prose(source) for word in _found(text)]
    assert violations == []


def test_scripts_configuration_and_templates_avoid_these_words() -> None:
    violations = [
        f"{_id(path)}:{n}: {word}"
        for path in OTHERS
        for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for word in _found(line)
    ]
    assert violations == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_comments_begin_with_their_subject(folder: str) -> None:
    """Comments of one line, or the first line of several."""
    clause = re.compile(rf"#\s*(?:{'|'.join(CLAUSES)})\b", re.IGNORECASE)
    violations = [
        f"{_id(path)}:{line}: {text}"
        for path in SOURCES
        if path.relative_to(ROOT).parts[0] == folder and clause.search(source := path.read_text(encoding="utf-8"))
        for line, text, continues in _comments(source)
        if not continues and clause.match(text)
    ]
    assert violations == []


def test_names_of_tests_begin_with_their_subject() -> None:
    clause = re.compile(rf"def (test_(?:{'|'.join(CLAUSES)}|it|its|as)_\w+)", re.IGNORECASE)
    violations = [
        f"{_id(path)}: {name}" for path in SOURCES for name in clause.findall(path.read_text(encoding="utf-8"))
    ]
    assert violations == []


def test_names_of_tests_have_no_metaphor_and_no_indefinite_pronoun() -> None:
    """A name states subject, verb and object: a run, not a night; is written, not goes; a message, not told."""
    words = (
        "anew anyone anything brings? come came goes? going gone got hears? heard lies lie nights? nobody said says? "
        "someone something stands? stood tells? told took taken tries wants? went whoever"
    )
    word = re.compile(rf"def (test_(?:\w+_)?(?:{'|'.join(words.split())})(?:_\w+)?)\(")
    violations = [f"{_id(path)}: {name}" for path in SOURCES for name in word.findall(path.read_text(encoding="utf-8"))]
    assert violations == []


def test_no_function_is_named_after_a_preposition() -> None:
    """Names of functions are verb and object: no suffix `_of`, no prefix `of_`."""
    named = re.compile(r"def (\w+_of|_?of_\w+)\(")
    violations = [
        f"{_id(path)}: {name}" for path in SOURCES for name in named.findall(path.read_text(encoding="utf-8"))
    ]
    assert violations == []


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    """A function's docstring begins with its verb, all others with their noun; a clause is no subject."""
    begins = re.compile(rf"""["'][\s\\]*(?:{"|".join(CLAUSES)})\b""")  # in any string: few files need a syntax tree
    sources = {path: path.read_text(encoding="utf-8") for path in SOURCES}
    violations = [
        f"{_id(path)}:{line}: {text.splitlines()[0]}"
        for path, source in sources.items()
        if begins.search(source)
        for line, text in _docstrings(ast.parse(source))
        if text.split(maxsplit=1)[0].rstrip(",") in CLAUSES
    ]
    assert violations == []


def _prose_lines(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page outside of code, tables and generated parts, with their numbers."""
    is_code = is_generated = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("<!-- made by "):
            is_generated = True
        elif line.startswith("<!-- until here"):
            is_generated = False
        elif line.lstrip().startswith("```"):
            is_code = not is_code
        elif not (is_code or is_generated or line.lstrip().startswith("|")):
            yield number, line


@pytest.mark.parametrize("page", PAGES, ids=_id)
def test_a_page_avoids_these_words_and_long_lines(page: Path) -> None:
    """Tables too avoid the words. Lines with an image's text may be long."""
    text = page.read_text(encoding="utf-8")
    words = [f"{n}: {word}" for n, line in enumerate(text.splitlines(), 1) for word in _found(line)]
    long = [n for n, line in _prose_lines(page) if len(line) > LONGEST and not line.lstrip().startswith("<")]
    assert (words, long) == ([], [])
