"""`pack OUTPUT.tar.gz`: what executors of a cluster need, in one archive that may be in any place.

Tasks do not import Delta: a quarter of the bytes that each executor would unpack for each run. `--driver` packs it too,
for a driver that runs by the pack.

    bin/python      what executors run as their Python: the node's own, with lib on its path
    lib/            Lastkey as pip installs it, and the packages that it needs, without pyspark: that is Spark's own
    lib/lastkey/.numba  compiled kernels, which no executor compiles again unless its processor is another one

Spark unpacks it beside each executor (`--archives lastkey.tar.gz#lastkey`). A zip (`--py-files`) would not do, because
extension modules and kernels need files. venv-pack and conda-pack pack a whole environment, with the packages of tests,
pyspark's 480 MB, and a link to an interpreter or a copy; pex unpacks into a cache of the user's at the first start.

The same installation gives the same bytes: files are in order and keep their times, and kernels are taken from where
Lastkey keeps them.
"""

from __future__ import annotations

import compileall
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import IO, Any, Final

from isal import igzip

from lastkey.jobs import installation
from lastkey.jobs.command.options import PackOptions
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import JobReport, counted, size
from lastkey.jobs.command.whole_file import PACK, check_file, whole_file
from lastkey.jobs.errors import NO_PACKAGE, OUTPUT_EXISTS
from lastkey.logformat.cache_folder import folders
from lastkey.logformat.jit import state_of_sources

_igzip: Any = igzip  # its functions have no types
PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
_SPARKS: Final = ("pyspark", "py4j")  # executors take them from their Spark, in its version
_LEFT_OUT: Final = frozenset(("tests", "include"))  # folders inside of packages: a quarter of their files
_UNUSED: Final = re.compile(r"pyarrow/\w*flight|zstandard/backend_c")  # libraries: a tenth of the bytes
_COMPILE: Final = (sys.executable, "-m", "lastkey.jobs.warm_up")
_TIME: Final = 315532800  # 1980, of files that are made here
_LEVEL: Final = 3  # isal's best; measured: zlib's 4 takes four times as long for 3 % less, and 9 twelve for 5 %
LAUNCHER: Final = f"""\
#!/bin/sh
# Runs this node's Python {PYTHON} with the packages of this pack. Executors' PYSPARK_PYTHON
here="$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)" || exit 5
for python in ${{LASTKEY_PYTHON:+"$LASTKEY_PYTHON"}} python{PYTHON} python3 python; do
  if [ "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = {PYTHON} ]; then
    export PYTHONPATH="$here/lib${{PYTHONPATH:+:$PYTHONPATH}}"
    exec "$python" "$@"
  fi
done
echo "error: Lastkey's pack needs Python {PYTHON} on $(uname -n), and PATH=$PATH has none; \\
install it there, or name it with spark.executorEnv.LASTKEY_PYTHON" >&2
exit 5
"""


@dataclass
class PackReport(JobReport):
    """Report of `pack`."""

    job = "pack"
    facts = "path driver python packed_bytes unpacked_bytes files packages"

    path: str = ""
    driver: bool = False
    packed_bytes: int = 0
    unpacked_bytes: int = 0
    files: int = 0
    packages: dict[str, str] = field(default_factory=dict)
    python: str = PYTHON

    def _outcome(self) -> str:
        sizes = f"{size(self.packed_bytes)}, unpacked {size(self.unpacked_bytes)} in {counted(self.files, 'file')}"
        users = "drivers and executors" if self.driver else "executors"
        packages = f"{counted(len(self.packages), 'package')} for Python {PYTHON}"
        return f"{packages}, {sizes}; for {users}: --archives {self.path}#lastkey"


def run(options: PackOptions, progress: Progress) -> PackReport:
    """Write the pack to `options.output`, whole or not at all. Raise OUTPUT_EXISTS if a file would be lost."""
    began = time.monotonic()
    path = Path(options.output).absolute()
    if path.exists() and not options.replace:
        raise OUTPUT_EXISTS(path=path)
    check_file("OUTPUT", str(path), PACK)
    report = PackReport(path=options.output, driver=options.driver)
    with tempfile.TemporaryDirectory() as folder:
        progress.doing("compiling kernels")
        ours = _with_kernels(Path(folder) / "pack")
        progress.doing("")
        report.seconds["kernels"] = time.monotonic() - began
        packages = _packages(driver=options.driver)
        report.packages = {"lastkey": installation.version(), **{one.name: one.version for one in packages}}
        files = {
            **_files(packages),
            **{str(file.relative_to(ours)): file for file in ours.rglob("*") if file.is_file()},
        }
        progress.start("packing", len(files), "file")
        with whole_file(path, PACK, "OUTPUT") as part:
            _write(part, files, ours, progress)
            report.packed_bytes = part.tell()
        report.files, report.unpacked_bytes = len(files), sum(file.stat().st_size for file in files.values())
    return report


def _with_kernels(folder: Path) -> Path:
    """Make the pack's own part: Lastkey's code with byte code and kernels, and the launcher."""
    library = folder / "lib"
    for name, source in installation.sources().items():
        target = library / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    record = library / f"lastkey-{installation.version()}.dist-info" / "METADATA"
    record.parent.mkdir()
    record.write_text(f"Metadata-Version: 2.1\nName: lastkey\nVersion: {installation.version()}\n")
    compileall.compile_dir(library, quiet=2, stripdir=folder, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)
    cache = library / "lastkey" / ".numba"
    subprocess.run(_COMPILE, check=False)
    for kept in reversed(folders(os.environ.get("NUMBA_CACHE_DIR", ""))):  # the best one last
        if (kept / state_of_sources()).is_dir():
            shutil.copytree(kept / state_of_sources(), cache / state_of_sources(), dirs_exist_ok=True)
    if not cache.is_dir():  # this installation has no place to keep them
        cache.mkdir(mode=0o700)
        subprocess.run(_COMPILE, check=False, env=os.environ | {"NUMBA_CACHE_DIR": str(cache)})
    (folder / "bin").mkdir()
    launcher = folder / "bin" / "python"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)
    return folder


def _packages(*, driver: bool) -> list[metadata.Distribution]:
    """Return the installed distributions that executors need, with dependencies, without those of Spark; or drivers
    too.
    """
    left_out = _SPARKS + (() if driver else installation.OF_DRIVERS)
    distributions: dict[str, metadata.Distribution] = {}
    wanted = [(required, "lastkey") for required in installation.requirements()]
    while wanted:
        requirement, by = wanted.pop()
        name = _normal(re.match(r"[\w.-]+", requirement)[0])  # type: ignore[index]
        if name in distributions or name in left_out:
            continue
        try:
            distributions[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError as error:
            if ";" in requirement:  # a requirement of an extra, or of another machine or Python
                continue
            raise NO_PACKAGE(what=f"{by} needs {requirement}", found="no such package") from error
        wanted += [
            (required, name) for required in distributions[name].requires or () if not re.search(r"\bextra\b", required)
        ]
    return [distributions[name] for name in sorted(distributions)]


def _files(packages: list[metadata.Distribution]) -> dict[str, Path]:
    """Return the files of packages by their names in the pack."""
    files = {}
    for package in packages:
        if package.files is None:
            raise NO_PACKAGE(what=f"the files of {package.name} {package.version}", found="no list of them (RECORD)")
        for file in package.files:
            if ".." not in file.parts and not _LEFT_OUT & set(file.parts) and not _UNUSED.match(str(file)):
                path = Path(file.locate())
                if path.is_file():  # byte code may have been removed
                    files[f"lib/{file}"] = path
    return files


def _write(part: IO[bytes], files: Mapping[str, Path], ours: Path, progress: Progress) -> None:
    """Write files in the order of their names, without owner, permissions and times, so that packs are reproducible."""
    with _igzip.IGzipFile("", "wb", _LEVEL, part, 0) as packed, tarfile.open(fileobj=packed, mode="w|") as archive:
        for name, path in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            status = path.stat()
            entry.size = status.st_size
            entry.mode = 0o755 if status.st_mode & 0o100 else 0o644
            entry.mtime = _TIME if path.is_relative_to(ours) else int(status.st_mtime)  # their byte code names the time
            with path.open("rb") as stream:
                archive.addfile(entry, stream)
            progress.advance()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
