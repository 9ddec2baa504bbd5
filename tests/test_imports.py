"""Who may import whom, how long a module may be, and how none may be called: read from the sources, nothing is run.

The rules stand in CONTRIBUTING; they keep the formats free of Spark, and Spark's part free of bytes.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("logformat", "udfs", "jobs")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
MODULES = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in SOURCES]

CODECS = {"google_crc32c", "cramjam", "zstandard", "lz4", "snappy"}
THIRD_PARTY = {
    "logformat": {"numpy", "numba", "llvmlite", "pyarrow", *CODECS},
    "udfs": {"numpy", "numba", "pyarrow", "fastavro", *CODECS},
    "jobs": {"numpy", "pyarrow", "pyspark", "delta", "py4j", "click", "tqdm", "google_crc32c", "deltalake",
             "matplotlib", "jinja2", "markupsafe", "pandas"},
}  # fmt: skip
OURS = {"logformat": {"logformat"}, "udfs": {"udfs", "logformat"}, "jobs": {"jobs", "udfs", "logformat"}}
# What of the formats the jobs may know: names, texts and types, no reader of a log
FORMATS_FOR_JOBS = {"names", "schemas", "errors", "text", "checkpoints", "locations", "control_characters"}
# In logformat: modules that import nothing of ours ...
LEAVES = {"layout", "names", "schemas", "errors", "control_characters"}
# ... and those that kernels may import beside other kernels: what checksums are made of is inlined into them
FOR_KERNELS = {"layout", "jit", "crc32", "crc32c"}
ONLY_IN = {
    "delta": {"jobs.state"},
    "py4j": {"jobs.state"},
    "click": {"jobs.cli"},
    "tqdm": {"jobs.progress"},
    "fastavro": {"udfs.avro"},
    "matplotlib": {"jobs.report_plots"},
    "jinja2": {"jobs.report_page"},
    "pandas": {"jobs.notebook"},
    "deltalake": {"jobs.data_source_store"},
}
LONGEST = 500


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """(dotted name of what is imported, whether it is for type checkers only); `from a import b` gives a.b."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    unseen = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in unseen) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from ((f"{node.module}.{alias.name}", id(node) in unseen) for alias in node.names)


def of_ours(name: str) -> tuple[str, str] | None:
    """(package, module) of an imported name; module "" where the package itself is imported."""
    package, _, rest = name.partition(".")
    if package not in PACKAGES:
        return None
    return package, rest.partition(".")[0]


@pytest.mark.parametrize("path", SOURCES, ids=MODULES)
def test_imports_only_what_its_package_may(path):
    package, module = path.relative_to(ROOT).parts[0], path.stem
    for name, _ in imports(path):
        top = name.partition(".")[0]
        ours = of_ours(name)
        if ours is None:
            assert top in sys.stdlib_module_names or top in THIRD_PARTY[package], name
            assert f"{package}.{module}" in ONLY_IN.get(top, {f"{package}.{module}"}), name
            continue
        assert ours[0] in OURS[package], name
        if package == "jobs" and ours[0] == "logformat":
            assert ours[1] in FORMATS_FOR_JOBS, f"{name}: a job reads log files only through udfs"
        if package == "logformat" and module in LEAVES:
            raise AssertionError(f"{name}: {module} imports nothing of ours")
        if module.endswith("_kernels"):
            assert ours[1].endswith("_kernels") or ours[1] in FOR_KERNELS, f"{name}: kernels import only kernels"


@pytest.mark.parametrize("path", SOURCES, ids=MODULES)
def test_length_and_name(path):
    n = len(path.read_text(encoding="utf-8").splitlines())
    assert n <= LONGEST, f"{n} lines: split it"
    if path.stem.endswith("_kernels"):
        assert n <= 350, f"{n} lines of kernels"
    assert path.stem not in sys.stdlib_module_names or path.stem.startswith("__")
    assert path.stem not in ("common", "utils", "helpers", "util", "misc")


def test_the_session_is_made_in_one_place():
    makers = {
        module
        for module, path in zip(MODULES, SOURCES, strict=True)
        if any(text in path.read_text(encoding="utf-8") for text in ("SparkSession.builder", "launch_gateway("))
    }
    assert makers == {"jobs.session"}


def test_only_the_command_line_prints():
    speakers = {
        module
        for module, path in zip(MODULES, SOURCES, strict=True)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "click.echo")
    }
    assert speakers <= {"jobs.cli", "logformat.dump"}


def test_no_product_module_imports_tests():
    for path in SOURCES:
        assert not any(name.partition(".")[0] in ("tests", "pytest") for name, _ in imports(path)), path


def test_asserts_check_no_input():
    """`assert` disappears under -O: sizes of field tables may be asserted at import, nothing inside a function."""
    for path in SOURCES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside = [
            node.lineno
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef)
            for node in ast.walk(function)
            if isinstance(node, ast.Assert)
        ]
        assert not inside, f"{path}: assert in a function, lines {inside}"
