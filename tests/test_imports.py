"""Rules for imports, the length of modules, and their names: read from the sources, nothing is run.

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

from tests.builders.trees import files_in

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("logformat", "udfs", "jobs")
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for package in PACKAGES
    for path in files_in(ROOT / package, "**/*.py")
}

# A room, or a module that lies in none, and all that it may import beside itself, of its own package and those below
_BASE = {
    "logformat.storage", "logformat.errors", "logformat.layout", "logformat.names",
    "logformat.schemas",
}  # fmt: skip
_BYTES = _BASE | {"logformat.jit", "logformat.primitives"}
_FILES = _BYTES | {"logformat.batches", "logformat.side_files", "logformat.messages"}
_LOGS = _BYTES | {"logformat.batches", "logformat.side_files", "logformat.listing"}  # modules by which udfs read logs
_TASK = {"udfs.storage", "udfs.problem", "udfs.held_back", "udfs.segments", "udfs.groups",
         "udfs.steps", "udfs.ranges"}  # fmt: skip
_HOLES = _TASK | {"udfs.holes"}  # not for verify, which has that rule in code of its own
_RULES = {f"udfs.compact.{name}" for name in ("verdicts", "cleaner", "plan")}
_STEPS = _LOGS | _RULES | {f"udfs.compact.{name}" for name in ("scan", "clean", "output")}
# Modules of logformat that jobs may import: names, texts and types, no reader of a log
_NAMES = {
    "logformat.names", "logformat.schemas", "logformat.errors", "logformat.control_characters",
    "logformat.storage",
    "logformat.side_files.checkpoints",
    "logformat.listing",  # listed segments, and the files of a folder that count: it opens no log but a .swap
}  # fmt: skip
_BASICS = {"jobs.errors", "jobs.installation", "jobs.topics"} | _NAMES
_SHELL = _BASICS | _TASK | {"jobs.command", "jobs.archive", "jobs.store"}
_JOB = _SHELL | {"jobs.spark", "jobs.recorded"}
FLOORS: dict[str, set[str]] = {
    "logformat.storage": {"logformat.errors"},
    "logformat.errors": set(),
    "logformat.layout": set(),
    "logformat.names": set(),
    "logformat.schemas": {"logformat.errors"},
    "logformat.control_characters": set(),
    "logformat.cache_folder": {"logformat.errors"},
    "logformat.jit": {"logformat.cache_folder"},
    "logformat.primitives": _BYTES,
    "logformat.batches": _BYTES,
    "logformat.side_files": _BYTES,
    "logformat.messages": _BYTES,
    "logformat.listing": _FILES,
    "logformat.tiered": _FILES,
    "logformat.search": _FILES | {"logformat.listing"},
    "logformat.dump": _FILES,
    "logformat.writing": _FILES,
    "logformat": {"logformat.batches", "logformat.search", "logformat.writing"},
    "udfs": set(),
    "udfs.storage": _BYTES | {"logformat.side_files", "logformat.tiered"},
    "udfs.groups": set(),
    "udfs.ranges": set(),
    "udfs.steps": set(),
    "udfs.problem": {"logformat.errors"},
    "udfs.held_back": set(),
    "udfs.segments": _LOGS | {"udfs.storage"},
    "udfs.erased_keys": {"logformat.errors", "udfs.storage"},
    "udfs.read_back": _LOGS | {"udfs.storage", "udfs.problem"},
    "udfs.last_records": _LOGS | {"udfs.storage"},
    "udfs.hole_kernels": {"logformat.jit", "logformat.layout"},
    "udfs.holes": _LOGS | {"logformat.search", "udfs.hole_kernels", "udfs.storage", "udfs.problem", "udfs.segments"},
    "udfs.decode": {"logformat.jit", "logformat.errors", "logformat.primitives"},
    "udfs.dump_files": _FILES | _HOLES | {"logformat.listing", "logformat.dump", "udfs.decode"},
    "udfs.compact": set(),
    "udfs.compact.verdicts": set(),
    "udfs.compact.cleaner": {"logformat.layout", "logformat.names", "udfs.compact.verdicts", "udfs.segments"},
    "udfs.compact.plan": _LOGS | _TASK | {"udfs.compact.cleaner"},
    "udfs.yields": {"logformat.jit"},
    "udfs.compact.scan": _LOGS | _HOLES | _RULES | {"udfs.yields"},
    "udfs.compact.clean": _LOGS | _TASK | _RULES | {"udfs.compact.scan", "udfs.erased_keys", "udfs.yields"},
    "udfs.compact.output": _LOGS | _TASK | _RULES | {"udfs.compact.scan", "udfs.compact.clean", "udfs.read_back"},
    "udfs.compact.split_stages": _TASK | _STEPS,
    "udfs.compact.passes": _TASK | _STEPS | {"udfs.yields"},
    "udfs.compact.compact_partition": _TASK
    | _STEPS
    | {"udfs.yields", "udfs.compact.passes", "udfs.compact.split_stages"},
    "udfs.verify": _LOGS | _TASK,  # never compact: it shares no code with what it checks
    "udfs.lookup": _LOGS | _HOLES | {"logformat.search", "udfs.data_source"},
    "udfs.convert_log": _LOGS | _TASK | {"logformat.writing", "udfs.read_back"},
    "udfs.reindex": _LOGS | _TASK | {"udfs.read_back", "udfs.verify"},
    "udfs.merge": _LOGS | _TASK | {"udfs.reindex"},
    "udfs.data_source": _LOGS | _HOLES | {"logformat.search"},  # audits read by it: never compact
    "udfs.export": {"udfs.data_source", "udfs.decode", "udfs.compact"} | _LOGS | _TASK,
    "udfs.replay": {"udfs.data_source"} | _LOGS | _TASK,
    "udfs.key_search": {"logformat.jit", "udfs.data_source", "udfs.yields"} | _LOGS | _TASK,
    "udfs.audit": {"logformat.jit", "logformat.messages", "udfs.data_source", "udfs.decode"}
    | _LOGS
    | _TASK,  # as verify
    "udfs.cluster_metadata": _LOGS | {"logformat.messages"},
    "udfs.report": _LOGS | _TASK | {"udfs.compact", "logformat.writing"},
    "jobs": set(),
    "jobs.installation": set(),
    "jobs.errors": {"jobs.installation"},
    "jobs.topics": set(),
    "jobs.command": _BASICS | {"udfs.storage", "udfs.problem", "udfs.segments", "jobs.archive", "jobs.store"},
    "jobs.archive": _BASICS | _TASK,
    "jobs.store": _BASICS
    | {
        "udfs.storage",
        "udfs.problem",
        "udfs.segments",
        "udfs.ranges",
        "udfs.steps",
        "udfs.lookup.minutes",
        "udfs.audit.entries",
        "udfs.erased_keys",
        "udfs.export.write_files",
    },
    "jobs.recorded": _SHELL,
    "jobs.spark": _SHELL - {"jobs.archive"},
    "jobs.compact": _JOB
    | {"udfs.compact", "udfs.erased_keys", "udfs.yields", "udfs.cluster_metadata", "logformat.primitives"},
    "jobs.verify": _JOB | {"udfs.verify"},
    "jobs.restore": _JOB | {"jobs.compact", "udfs.convert_log", "udfs.last_records"},
    "jobs.archive_needed": _JOB | {"jobs.compact", "udfs.read_back"},  # plans as the next run would
    "jobs.live_cluster": {"jobs.errors", "jobs.command"},
    "jobs.policies": _SHELL | {"jobs.live_cluster", "udfs.cluster_metadata"},
    "jobs.rollback": _JOB | {"udfs.data_source"},
    "jobs.runs": _JOB,
    "jobs.rebuild_state": _JOB,
    "jobs.vacuum": _JOB,
    "jobs.reindex": _JOB | {"udfs.reindex"},
    "jobs.lookup": _JOB | {"jobs.data_source", "udfs.data_source", "udfs.lookup"},
    "jobs.inspect_log": _JOB | {"logformat.dump", "udfs.dump_files"},  # lists files, adds up findings
    "jobs.functions": {"udfs.decode"},
    "jobs.data_source": _SHELL | {"udfs.data_source"},  # never spark: where Spark plans a source there is no session
    "jobs.export": _JOB | {"jobs.data_source", "jobs.functions", "udfs.data_source", "udfs.decode", "udfs.export"},
    "jobs.replay": _JOB | {"jobs.live_cluster", "jobs.data_source", "udfs.data_source", "udfs.replay"},
    "jobs.convert": _JOB | {"jobs.restore", "udfs.convert_log"},
    "jobs.merge": _JOB | {"udfs.merge"},
    "jobs.report": _JOB | {"jobs.compact", "jobs.runs", "udfs.report"},
    "jobs.audit": _JOB | {"jobs.data_source", "jobs.report", "udfs.audit", "udfs.data_source"},  # never compact
    "jobs.erase": _JOB
    | {"jobs.audit", "jobs.compact", "jobs.report", "jobs.vacuum", "udfs.erased_keys", "udfs.key_search"},
    "jobs.notebook": _JOB | {"jobs.report", "udfs.report"},
    "jobs.api": _SHELL
    | {"jobs.compact", "jobs.convert", "jobs.export", "jobs.merge", "jobs.pack", "jobs.policies", "jobs.reindex"}
    | {"jobs.replay", "jobs.verify"},  # reports
    "jobs.api_store": _SHELL
    | {
        "jobs.archive_needed",
        "jobs.audit",
        "jobs.erase",
        "jobs.rebuild_state",
        "jobs.restore",
        "jobs.rollback",
        "jobs.runs",
    }
    | {"jobs.vacuum"},  # reports
    "jobs.warm_up": _JOB
    | {"jobs.api", "jobs.compact", "udfs.compact", "udfs.lookup.minutes", "logformat.layout", "logformat.writing"}
    | {"logformat.cache_folder", "logformat.jit"},  # packages with kernels
    "jobs.prepare": _JOB | {"jobs.warm_up"},
    "jobs.pack": _JOB | {"logformat.cache_folder", "logformat.jit"},  # kernels as files
    "jobs.main": {"jobs.command", "jobs.errors", "jobs.spark"},
}
# Modules that kernels may import beside other kernels: checksums are inlined into them
FOR_KERNELS = {
    "udfs.compact.verdicts",
    "logformat.layout",
    "logformat.jit",
    "logformat.primitives.crc32",
    "logformat.primitives.crc32c",
    "logformat.primitives.c_library",
}

CODECS = {"google_crc32c", "cramjam", "isal", "zstandard", "backports", "lz4", "snappy"}
THIRD_PARTY = {
    "logformat": {"numpy", "numba", "llvmlite", "pyarrow", "obstore", "botocore", *CODECS},
    "udfs": {"numpy", "numba", "pyarrow", "fastavro", *CODECS},
    "jobs": {"numpy", "pyarrow", "pyspark", "delta", "py4j", "click", "tqdm", "google_crc32c", "deltalake",
             "jinja2", "markupsafe", "pandas", "isal"},
}  # fmt: skip
ONLY_IN = {
    "delta": "jobs.store",
    "obstore": "logformat.storage",
    "botocore": "logformat.storage",
    "py4j": "jobs.spark",
    "deltalake": "jobs.store",
    "click": "jobs.command",
    "tqdm": "jobs.command.progress",
    "fastavro": "udfs.decode.avro",
    "jinja2": "jobs.report.page",
    "pandas": "jobs.notebook",
}
LONGEST, LONGEST_OF_KERNELS = 500, 350  # lines


def find_module(name: str) -> str | None:
    """Return the module of ours that a dotted name is, or lies in, without `lastkey.`; None: somebody else's."""
    top, _, rest = name.partition(".")
    parts = rest.split(".")
    if top != "lastkey" or parts[0] not in PACKAGES:
        return None
    for n in range(len(parts), 0, -1):
        for module in (".".join(parts[:n]), ".".join([*parts[:n], "__init__"])):
            if module in SOURCES:
                return module
    raise AssertionError(f"{name}: no such module")


def within(module: str, room: str) -> bool:
    return module == room or module.startswith(room + ".") or module == f"{room}.__init__"


def find_floor(module: str) -> str:
    """Return the entry of FLOORS that a module belongs to."""
    names = [room for room in FLOORS if within(module, room) and (room not in PACKAGES or module == f"{room}.__init__")]
    assert names, f"{module}: in no room of the table"
    return max(names, key=len)


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """Return all nodes of a syntax tree."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@functools.cache
def imports(path: Path) -> list[str]:
    """Return dotted names of all imports, for type checkers only too; `from a import b` gives a.b."""
    names = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def wrong_with(module: str, name: str) -> str | None:
    """Return why a module may not import a name; None: it may."""
    package, floor, top = module.partition(".")[0], find_floor(module), name.partition(".")[0]
    ours = find_module(name)
    if ours is None:
        if top not in sys.stdlib_module_names and name != "lastkey" and top not in THIRD_PARTY[package]:
            return f"no package of {package}'s"
        return None if within(module, ONLY_IN.get(top, module)) else f"only {ONLY_IN[top]} may"
    if not any(within(ours, room) for room in (floor, *FLOORS[floor])):
        return f"FLOORS lets {floor} import no such room"
    if module.endswith("_kernels") and not ours.endswith("_kernels") and ours not in FOR_KERNELS:
        return "kernels import only kernels"
    return None


def test_every_module_imports_only_permitted_rooms():
    assert len(SOURCES) > 200
    violations = [
        f"{module} imports {name}: {why}"
        for module, path in SOURCES.items()
        for name in imports(path)
        if (why := wrong_with(module, name))
    ]
    assert violations == []


def test_import_check_detects_each_kind_of_violation():
    """A check with an empty list is no better than none."""
    assert [
        wrong_with("udfs.problem", "pyspark.sql"),
        wrong_with("jobs.vacuum", "deltalake.DeltaTable"),
        wrong_with("logformat.names", "lastkey.udfs.storage"),
        wrong_with("udfs.verify.partition", "lastkey.udfs.compact.plan"),
        wrong_with("jobs.vacuum", "lastkey.logformat.batches"),
        wrong_with("jobs.vacuum", "lastkey.udfs.report.measure_kernels"),
        wrong_with("jobs.spark.tasks", "lastkey.udfs.compact.plan"),
        wrong_with("logformat.batches.walk_kernels", "lastkey.logformat.names"),
    ] == [
        "no package of udfs's",
        "only jobs.store may",
        "FLOORS lets logformat.names import no such room",
        "FLOORS lets udfs.verify import no such room",
        "FLOORS lets jobs.vacuum import no such room",
        "FLOORS lets jobs.vacuum import no such room",
        "FLOORS lets jobs.spark import no such room",
        "kernels import only kernels",
    ]


def test_table_of_rooms_is_complete():
    assert {find_floor(module) for module in SOURCES} == set(FLOORS)
    named = {room for rooms in FLOORS.values() for room in rooms} | set(ONLY_IN.values()) | FOR_KERNELS
    assert not {room for room in named if not any(within(module, room) for module in SOURCES)}


def defined_elsewhere(path: Path) -> Iterator[str]:
    """Yield what is imported from a module of ours that has it from another one: a way around FLOORS."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (ours := find_module(node.module or "")) and ours in SOURCES:
            passed_on = {name.rpartition(".")[2] for name in imports(SOURCES[ours])}
            yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name in passed_on)


def test_names_are_imported_from_the_defining_module():
    violations = {
        module: names
        for module, path in SOURCES.items()
        if not module.endswith("__init__") and (names := list(defined_elsewhere(path)))
    }
    assert violations == {}


def test_imports_have_no_cycle():
    """Imports between modules and between rooms have no cycles."""
    modules = {
        module: {ours for name in imports(path) if (ours := find_module(name))} for module, path in SOURCES.items()
    }
    rooms: dict[str, set[str]] = {}
    for module, used in modules.items():
        rooms.setdefault(find_floor(module), set()).update(find_floor(ours) for ours in used)
    for graph in (modules, rooms):
        graphlib.TopologicalSorter({key: used - {key} for key, used in graph.items()}).prepare()  # raises CycleError


def test_modules_are_short_and_named_for_their_content():
    long, misnamed = {}, []
    for module, path in SOURCES.items():
        n = len(path.read_text(encoding="utf-8").splitlines())
        if n > (LONGEST_OF_KERNELS if path.stem.endswith("_kernels") else LONGEST):
            long[module] = n
        for part in (*path.relative_to(ROOT).parts[1:-1], path.stem):
            hides = part in sys.stdlib_module_names and not part.startswith("__")
            if hides or part in ("common", "utils", "helpers", "util", "misc"):
                misnamed.append(module)
    assert long == {}, "split them"
    assert misnamed == []


def test_no_module_imports_a_package_by_its_bare_name():
    """A bare `jobs` works in a checkout, as a second copy of the module, and is missing from the wheel."""
    bare = re.compile(
        r"(?<!from lastkey )\b(?:from|import) (?:jobs|udfs|logformat)(?:\.\w+)* ?(?:import|[;,\"']|$)"
        r"|import (?:\w+, )+(?:jobs|udfs|logformat)\b|[\"'](?:jobs|udfs|logformat)\.\w+[.:]\w"
        r"|(?<![\w./])(?:jobs|udfs|logformat)\.[\w.]+(?::\w|\.\{)"
    )
    kinds = {".py", ".ipynb", ".md", ".sh", ".toml", ".conf"}
    texts = [path for path in ROOT.rglob("*") if path.suffix in kinds and path.name != "CHANGELOG.md"]
    texts = [path for path in texts if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]
    violations = {
        f"{path.relative_to(ROOT)}:{number}": line
        for path in texts
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if bare.search(line)
    }
    assert len(texts) > 500
    assert violations == {}


def test_session_is_created_in_one_module_and_reused_in_another():
    makers = {
        module
        for module, path in SOURCES.items()
        if any(text in path.read_text(encoding="utf-8") for text in ("SparkSession.builder", "launch_gateway("))
    }
    assert makers == {"jobs.spark.session", "jobs.spark.running"}


def test_only_one_room_uses_delta():
    """Code that uses `.format("delta")`, or names its classes to the JVM, depends on Delta as an import does."""
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
    """No module prints; stdout is the command line's."""
    users = {
        module
        for module in SOURCES
        for node in nodes(SOURCES[module])
        if (isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.stdout", "sys.__stdout__"))
        or (isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "click.echo"))
    }
    assert users == {"jobs.command.cli"}


def test_no_product_module_imports_tests():
    for path in SOURCES.values():
        assert not any(name.partition(".")[0] in ("tests", "pytest") for name in imports(path)), path


def test_no_test_module_is_imported():
    """Shared code of tests lies in tests/builders, or beside them in a module that holds no tests."""
    sources = [path for path in files_in(ROOT / "tests", "**/*.py") if path != Path(__file__)]
    assert len(sources) > 100
    # read as text: what a test hands to a child process counts too
    named = {path: re.findall(r"tests\.(?:\w+\.)*test_\w+", path.read_text(encoding="utf-8")) for path in sources}
    assert {str(path): names for path, names in named.items() if names} == {}


def test_asserts_do_not_check_input():
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


def test_kernel_cache_covers_every_kernel():
    """A change of any file with a compiled function makes another cache folder: else old machine code would run."""
    from lastkey.logformat import jit

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
            made_of = {SOURCES[ours] for name in imports(path) if (ours := find_module(name))}
            assert made_of <= stamped | {SOURCES["logformat.jit"]}, module
