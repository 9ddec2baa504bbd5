"""Who may import whom, how long a module may be, and how none may be called: read from the sources, nothing is run.

`FLOORS` is the table of CONTRIBUTING: it keeps the formats free of Spark, Spark's part free of bytes, and the code that
checks free of the code that it checks.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders.trees import files_in

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("logformat", "udfs", "jobs")
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for package in PACKAGES
    for path in files_in(ROOT / package, "**/*.py")
}

# A room, or a module that lies in none, and what of its package it may import beside itself
_BASE = {
    "logformat.s3_access", "logformat.errors", "logformat.layout", "logformat.names", "logformat.schemas",
    "logformat.locations",
}  # fmt: skip
_BYTES = _BASE | {"logformat.jit", "logformat.regular_files", "logformat.primitives"}
_FILES = _BYTES | {"logformat.batches", "logformat.side_files", "logformat.messages"}
_TASK = {"udfs.storage", "udfs.problem", "udfs.segments", "udfs.attempt", "udfs.groups"}
_SHELL = {"jobs.errors", "jobs.topics", "jobs.command", "jobs.archive", "jobs.store"}
_JOB = _SHELL | {"jobs.spark"}
FLOORS: dict[str, set[str]] = {
    "logformat.s3_access": set(),
    "logformat.errors": {"logformat.s3_access"},
    "logformat.layout": set(),
    "logformat.names": set(),
    "logformat.schemas": set(),
    "logformat.control_characters": set(),
    "logformat.locations": {"logformat.s3_access"},
    "logformat.cache_folder": {"logformat.errors"},
    "logformat.jit": {"logformat.cache_folder"},
    "logformat.regular_files": {"logformat.errors", "logformat.locations"},
    "logformat.primitives": _BYTES,
    "logformat.batches": _BYTES,
    "logformat.side_files": _BYTES,
    "logformat.messages": _BYTES,
    "logformat.listing": _FILES,
    "logformat.search": _FILES | {"logformat.listing"},
    "logformat.dump": _FILES,
    "logformat.writing": _FILES,
    "logformat": {"logformat.batches", "logformat.search", "logformat.writing"},
    "udfs": set(),
    "udfs.storage": set(),
    "udfs.groups": set(),
    "udfs.problem": set(),
    "udfs.segments": set(),
    "udfs.attempt": {"udfs.problem"},
    "udfs.decode": set(),
    "udfs.dump_files": _TASK | {"udfs.decode"},
    "udfs.compact": _TASK,
    "udfs.verify": _TASK,  # never compact: it shares no code with what it checks
    "udfs.lookup": _TASK,
    "udfs.reindex": _TASK | {"udfs.compact", "udfs.verify"},
    "udfs.data_source": _TASK | {"udfs.compact", "udfs.lookup"},
    "udfs.report": _TASK | {"udfs.compact"},
    "jobs": set(),
    "jobs.errors": set(),
    "jobs.topics": set(),
    "jobs.command": {"jobs.errors", "jobs.topics"},
    "jobs.archive": {"jobs.errors", "jobs.topics"},
    "jobs.store": {"jobs.errors", "jobs.topics"},
    "jobs.spark": {"jobs.errors", "jobs.topics", "jobs.command", "jobs.store"},
    "jobs.compact": _JOB,
    "jobs.verify": _JOB,
    "jobs.restore": _JOB,
    "jobs.rollback": _JOB,
    "jobs.rebuild_state": _JOB,
    "jobs.vacuum": _JOB,
    "jobs.reindex": _JOB,
    "jobs.lookup": _JOB,
    "jobs.inspect_log": _JOB,
    "jobs.functions": set(),
    "jobs.data_source": _SHELL,  # never spark: where Spark plans a source there is no session
    "jobs.report": _JOB | {"jobs.compact"},
    "jobs.notebook": _JOB | {"jobs.report"},
    "jobs.prepare": _JOB,
    "jobs.__main__": {"jobs.command", "jobs.spark"},
}
OURS = {"logformat": {"logformat"}, "udfs": {"udfs", "logformat"}, "jobs": {"jobs", "udfs", "logformat"}}
# What of the formats the jobs may know: names, texts and types, no reader of a log
FORMATS_FOR_JOBS = {
    "logformat.names", "logformat.schemas", "logformat.errors", "logformat.locations", "logformat.control_characters",
    "logformat.s3_access",
    "logformat.side_files.checkpoints",
    "logformat.listing",  # what a listed segment is, and which files of a folder count: it opens no log but a .swap
}  # fmt: skip
# What kernels may import beside other kernels: what checksums are made of is inlined into them
FOR_KERNELS = {"logformat.layout", "logformat.jit", "logformat.primitives.crc32", "logformat.primitives.crc32c"}

CODECS = {"google_crc32c", "cramjam", "zstandard", "lz4", "snappy"}
THIRD_PARTY = {
    "logformat": {"numpy", "numba", "llvmlite", "pyarrow", *CODECS},
    "udfs": {"numpy", "numba", "pyarrow", "fastavro", *CODECS},
    "jobs": {"numpy", "pyarrow", "pyspark", "delta", "py4j", "click", "tqdm", "google_crc32c", "deltalake",
             "matplotlib", "jinja2", "markupsafe", "pandas"},
}  # fmt: skip
ONLY_IN = {
    "delta": "jobs.store",
    "py4j": "jobs.store",
    "deltalake": "jobs.store",
    "click": "jobs.command.cli",
    "tqdm": "jobs.command.progress",
    "fastavro": "udfs.decode.avro",
    "matplotlib": "jobs.report.plots",
    "jinja2": "jobs.report.page",
    "pandas": "jobs.notebook",
}
LONGEST = 500


def module_of(name: str) -> str | None:
    """The module of ours that a dotted name is, or lies in; None: of somebody else."""
    parts = name.split(".")
    if parts[0] not in PACKAGES:
        return None
    for n in range(len(parts), 0, -1):
        for module in (".".join(parts[:n]), ".".join([*parts[:n], "__init__"])):
            if module in SOURCES:
                return module
    raise AssertionError(f"{name}: no such module")


def within(module: str, room: str) -> bool:
    return module == room or module.startswith(room + ".") or module == f"{room}.__init__"


def floor_of(module: str) -> str:
    """The entry of FLOORS that a module belongs to."""
    names = [room for room in FLOORS if within(module, room) and (room not in PACKAGES or module == f"{room}.__init__")]
    assert names, f"{module}: in no room of the table"
    return max(names, key=len)


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """Of the syntax tree, all."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imports(path: Path) -> Iterator[str]:
    """Dotted names of what is imported, for type checkers only too; `from a import b` gives a.b."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("module", SOURCES)
def test_imports_only_what_its_room_may(module):
    package, floor = module.partition(".")[0], floor_of(module)
    for name in imports(SOURCES[module]):
        top = name.partition(".")[0]
        ours = module_of(name)
        if ours is None:
            assert top in sys.stdlib_module_names or top in THIRD_PARTY[package], name
            assert within(module, ONLY_IN.get(top, module)), name
            continue
        assert ours.partition(".")[0] in OURS[package], name
        if ours.partition(".")[0] == package:
            assert within(ours, floor) or any(within(ours, room) for room in FLOORS[floor]), f"{floor} imports {name}"
        if package == "jobs" and top == "logformat":
            assert ours in FORMATS_FOR_JOBS, f"{name}: a job reads log files only through udfs"
        if module.endswith("_kernels"):
            assert ours.endswith("_kernels") or ours in FOR_KERNELS, f"{name}: kernels import only kernels"


def test_the_table_has_no_room_that_is_not_there_and_every_one_that_is():
    assert {floor_of(module) for module in SOURCES} == set(FLOORS)
    named = (
        {room for rooms in FLOORS.values() for room in rooms} | set(ONLY_IN.values()) | FORMATS_FOR_JOBS | FOR_KERNELS
    )
    assert not {room for room in named if not any(within(module, room) for module in SOURCES)}


def test_no_import_runs_in_a_circle():
    """Of modules, and of rooms."""
    modules = {
        module: {ours for name in imports(path) if (ours := module_of(name))} for module, path in SOURCES.items()
    }
    rooms: dict[str, set[str]] = {}
    for module, used in modules.items():
        rooms.setdefault(floor_of(module), set()).update(floor_of(ours) for ours in used)
    for graph in (modules, rooms):
        graphlib.TopologicalSorter({key: used - {key} for key, used in graph.items()}).prepare()  # raises CycleError


@pytest.mark.parametrize("module", SOURCES)
def test_length_and_name(module):
    path = SOURCES[module]
    n = len(path.read_text(encoding="utf-8").splitlines())
    assert n <= LONGEST, f"{n} lines: split it"
    if path.stem.endswith("_kernels"):
        assert n <= 350, f"{n} lines of kernels"
    for part in (*path.relative_to(ROOT).parts[1:-1], path.stem):
        assert part not in sys.stdlib_module_names or part.startswith("__"), part
        assert part not in ("common", "utils", "helpers", "util", "misc")


def test_the_session_is_made_in_one_place():
    makers = {
        module
        for module, path in SOURCES.items()
        if any(text in path.read_text(encoding="utf-8") for text in ("SparkSession.builder", "launch_gateway("))
    }
    assert makers == {"jobs.spark.session"}


def test_delta_lies_in_one_room():
    """Whoever says `.format("delta")`, or names its classes to the JVM, knows Delta as one who imports it does."""
    formats = {
        module
        for module in SOURCES
        for node in nodes(SOURCES[module])
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("format", "using", "load", "save")
        and any(isinstance(arg, ast.Constant) and str(arg.value).lower() == "delta" for arg in node.args)
    }
    assert formats, "the test sees no table at all"
    assert all(within(module, "jobs.store") for module in formats), formats


def test_only_the_command_line_prints():
    """Nobody prints; stdout is the command line's, which `__main__` flushes."""
    users = {
        module
        for module in SOURCES
        for node in nodes(SOURCES[module])
        if (isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.stdout", "sys.__stdout__"))
        or (isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "click.echo"))
    }
    assert users == {"jobs.command.cli", "jobs.__main__"}


def test_no_product_module_imports_tests():
    for path in SOURCES.values():
        assert not any(name.partition(".")[0] in ("tests", "pytest") for name in imports(path)), path


def test_no_test_module_is_imported():
    """What tests share lies in tests/builders, or beside them in a module that holds no tests."""
    sources = [path for path in files_in(ROOT / "tests", "**/*.py") if path != Path(__file__)]
    assert len(sources) > 100
    # read as text: what a test hands to a child process counts too
    named = {path: re.findall(r"tests\.(?:\w+\.)*test_\w+", path.read_text(encoding="utf-8")) for path in sources}
    assert {str(path): names for path, names in named.items() if names} == {}


def test_asserts_check_no_input():
    """`assert` disappears under -O: sizes of field tables may be asserted at import, nothing inside a function."""
    for module, path in SOURCES.items():
        inside = [
            node.lineno
            for function in nodes(path)
            if isinstance(function, ast.FunctionDef)
            for node in ast.walk(function)
            if isinstance(node, ast.Assert)
        ]
        assert not inside, f"{module}: assert in a function, lines {inside}"


def test_the_kernel_cache_sees_every_kernel():
    """What is compiled lies in a file whose change makes another cache folder: old machine code would run else."""
    from logformat import jit

    stamped = {path for pattern in jit._SOURCES for path in ROOT.glob(pattern)}
    compiled = {
        SOURCES[module]
        for module in SOURCES
        for node in nodes(SOURCES[module])
        if isinstance(node, ast.FunctionDef)
        and {ast.unparse(each).rpartition(".")[2] for each in node.decorator_list} & {"kernel", "inline", "intrinsic"}
    }
    assert len(compiled) > 20
    assert compiled <= stamped
    for module, path in SOURCES.items():  # and what they are made of
        if path in compiled:
            made_of = {SOURCES[ours] for name in imports(path) if (ours := module_of(name))}
            assert made_of <= stamped | {SOURCES["logformat.jit"]}, module
