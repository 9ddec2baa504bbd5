"""Folder of compiled kernels: pickles, so no other user may be able to write there."""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lastkey.logformat import cache_folder
from lastkey.logformat.cache_folder import weakness
from tests.builders.trees import files_in

ROOT = Path(cache_folder.__file__).resolve().parents[1]
US = frozenset((0, os.getuid()))

KERNELS = """
from lastkey.logformat.jit import kernel

@kernel
def twice(n):
    return n + n
"""
RUN = """
import kernels
assert kernels.twice(21) == 42
print(sum(kernels.twice.stats.cache_hits.values()), kernels.twice.stats.cache_path)
"""


@pytest.fixture
def closed(tmp_path):
    """Make a folder of which every part is safe, whatever rights the machine's temporary folder has."""
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o700)
    assert weakness(folder, US) == ""
    return folder


def _folder(path: Path, mode: int) -> Path:
    path.mkdir()
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o500])
def test_folder_writable_only_by_its_owner_is_accepted(closed, mode):
    assert weakness(_folder(closed / "a", mode), US) == ""


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_folder_writable_by_others_is_refused(closed, mode):
    folder = _folder(closed / "a", mode)
    assert weakness(folder, US) == f"others may write in {folder} (mode {mode:04o})"


def test_folder_that_others_can_replace_is_refused(closed):
    above = _folder(closed / "a", 0o777)
    inside = _folder(above / "b", 0o700)
    assert weakness(inside, US) == f"others may write in {above} (mode 0777)"
    assert weakness(above / "not yet" / "there", US) == f"others may write in {above} (mode 0777)"
    above.chmod(0o1777)  # as /tmp: other users cannot rename our files
    assert weakness(inside, US) == ""


def test_cache_of_another_user_is_not_used(closed):
    trusted = {Path("/").stat().st_uid} - {os.getuid()}
    assert weakness(closed, trusted).endswith(f"belongs to user {os.getuid()}")


def test_links_are_followed_and_checked(closed):
    bad = _folder(closed / "bad", 0o777)
    good = _folder(closed / "good", 0o700)
    (good / "to_bad").symlink_to("../bad/inner")
    inner = _folder(bad / "inner", 0o700)
    assert weakness(good / "to_bad", US) == f"others may write in {bad} (mode 0777)"
    (bad / "hop").symlink_to(good)  # ends in a good place, by way of a link that others may exchange
    (good / "to_hop").symlink_to(bad / "hop")
    assert weakness(good / "to_hop", US) == f"others may write in {bad} (mode 0777)"
    (closed / "fine").symlink_to("good/../good")
    assert weakness(closed / "fine", US) == ""
    (closed / "round").symlink_to("round")
    assert "Too many levels" in weakness(closed / "round", US)
    assert inner.is_dir()


def test_file_is_refused_as_a_cache_folder(closed):
    (closed / "a").touch()
    assert weakness(closed / "a", US) == f"{closed / 'a'} is not a folder"


# -- numba, in processes of its own

# Numba has been imported, and all that it imports to compile; nothing of ours. Of each line it makes a child, where
# numba reads its environment again
FORKS = """
import json, os, sys, traceback
import numba

numba.njit(lambda n: n + n)(21)
for line in sys.stdin:
    folder, root, umask, code, environment = json.loads(line)
    forked = os.fork()
    if forked:
        print(os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]), flush=True)
        continue
    os.chdir(folder)
    for number, name in enumerate(("stdout", "stderr"), 1):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.clear()
    os.environ.update(environment)
    numba.core.config.reload_config()
    sys.path[:0] = [folder, root]
    os.umask(umask)
    failed = 0
    try:
        exec(code)
    except BaseException:
        failed = 1
        traceback.print_exc()
    sys.stdout.flush()
    os._exit(failed)
"""


@pytest.fixture(scope="module")
def forks():
    with subprocess.Popen(
        [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
    assert process.returncode == 0


def _environment(changed):
    return {n: v for n, v in os.environ.items() if not n.startswith(("NUMBA", "XDG"))} | {"HOME": "/dev/null"} | changed


@pytest.fixture
def run(forks, closed):
    """Return a function that runs a kernel in a child."""
    (closed / "kernels.py").write_text(KERNELS)

    def run(root=ROOT, umask=0o022, code=RUN, **environment):
        arguments = [str(closed), str(root), umask, code, _environment(environment)]
        forks.stdin.write(json.dumps(arguments) + "\n")
        forks.stdin.flush()
        code = int(forks.stdout.readline())
        return subprocess.CompletedProcess((), code, *((closed / n).read_text() for n in ("stdout", "stderr")))

    return run


def _run_without_roots_power(folder, root):
    environment = _environment({"PYTHONPATH": os.pathsep.join([str(folder), str(root)])})
    return subprocess.run(
        [sys.executable, "-c", RUN], cwd=folder, env=environment, capture_output=True, text=True, check=False,
        preexec_fn=_without_roots_power,
    )  # fmt: skip


def _hits(done) -> tuple[int, str]:
    assert done.returncode == 0, done.stderr
    hits, _, path = done.stdout.strip().partition(" ")
    return int(hits), path


def _copy(folder: Path) -> Path:
    """Copy the sources to a folder of the test."""
    for name in ("lastkey", "logformat"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


class _Bomb:
    def __init__(self, path: Path) -> None:
        self.told = path

    def __reduce__(self):
        return Path.touch, (self.told,)


@pytest.mark.process
def test_code_in_a_folder_created_by_others_is_not_run(closed, run):
    cache, executed = closed / "cache", closed / "told"
    assert _hits(run(NUMBA_CACHE_DIR=str(cache)))[0] == 0
    assert {stat.S_IMODE(path.stat().st_mode) for path in [cache, *cache.rglob("*")] if path.is_dir()} == {0o700}
    for index in files_in(cache, "**/*.nbi"):
        index.write_bytes(pickle.dumps(_Bomb(executed)))
    cache.chmod(0o777)
    done = run(NUMBA_CACHE_DIR=str(cache))
    assert not executed.exists()
    assert done.returncode != 0
    assert f"PlaceError: NUMBA_CACHE_DIR={cache}: expected a folder that no other user can write" in done.stderr
    cache.chmod(0o700)  # the bomb is a pickle that runs code; otherwise this test proves nothing
    run(NUMBA_CACHE_DIR=str(cache))
    assert executed.exists()


@pytest.mark.process
def test_unsafe_cache_folder_is_a_usage_error(closed):
    cache = _folder(closed / "cache", 0o777)
    completed = subprocess.run(
        [sys.executable, "-m", "lastkey", "inspect", "examples/archive", "--json"], cwd=ROOT, check=False,
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)}, capture_output=True, text=True,
    )  # fmt: skip
    assert completed.returncode == 2
    assert f"error: NUMBA_CACHE_DIR={cache}: expected" in completed.stderr
    assert "Traceback" not in completed.stderr


@pytest.mark.process
def test_cache_beside_the_sources_is_safe_with_any_umask(closed, run):
    root = _copy(closed)
    assert _hits(run(root, umask=0))[1].startswith(str(root / ".numba"))
    assert stat.S_IMODE((root / ".numba").stat().st_mode) == 0o700
    assert _hits(run(root))[0] == 1


@pytest.mark.process
def test_cached_kernel_runs_without_the_compiler(closed, run):
    cache = {"NUMBA_CACHE_DIR": str(closed / "cache")}
    assert _hits(run(**cache))[0] == 0
    code = RUN + "import sys; assert 'numba.np.linalg' not in sys.modules"
    environment = _environment({"PYTHONPATH": os.pathsep.join([str(closed), str(ROOT)])} | cache)
    completed = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert _hits(completed)[0] == 1


@pytest.mark.process
def test_moved_sources_use_their_kernels_regardless_of_file_times(closed, run):
    """As in a pack; and into a folder of a group, as a node of a cluster has it: only the sources' own counts."""
    root = _copy(_folder(closed / "here", 0o700))
    (root / "logformat" / "kernels.py").write_text(KERNELS)
    own = RUN.replace("kernels", "lastkey.logformat.kernels")
    assert _hits(run(root, code=own))[0] == 0
    moved = closed / "moved"
    root.rename(moved)
    for path in files_in(moved, "**/*.py"):
        os.utime(path, (0, 0))
    closed.chmod(0o770)
    done = run(moved, code=own)
    closed.chmod(0o700)
    assert _hits(done)[0] == 1
    assert _hits(done)[1].startswith(str(moved / ".numba"))
    (moved / "logformat" / "kernels.py").write_text(KERNELS.replace("n + n", "2 * n"))
    assert _hits(run(moved, code=own))[0] == 0


def test_parent_folders_of_the_sources_are_checked(monkeypatch, closed):
    monkeypatch.setattr(cache_folder, "ROOT", closed / "sources")
    closed.chmod(0o1777)
    assert weakness(closed, US) == f"others may write in {closed} (mode 1777)"


@pytest.mark.process
def test_kernel_cache_falls_back_to_the_users_own_folder(closed, run):
    root = _copy(_folder(closed / "open", 0o777))
    home = _folder(closed / "home", 0o700)
    own = home / ".cache" / "lastkey" / str(os.getuid())
    for hits in (0, 1):
        done = run(root, HOME=str(home))
        assert _hits(done)[0] == hits
        assert _hits(done)[1].startswith(str(own))
        assert done.stderr == ""
    assert not (root / ".numba").exists()
    other = _hits(run(root, HOME=str(home), XDG_CACHE_HOME=str(closed / "xdg")))
    assert other[1].startswith(str(closed / "xdg" / "lastkey"))


@pytest.mark.process
def test_kernel_cache_falls_back_to_memory_with_one_warning(closed, run):
    root = _copy(_folder(closed / "open", 0o777))
    done = run(root, HOME=str(_folder(closed / "home", 0o777)))
    assert _hits(done) == (0, "None")
    assert done.stderr.count("no place for compiled kernels") == 1
    assert f"others may write in {closed / 'open'} (mode 0777)" in done.stderr
    assert not list(closed.rglob("*.nbi"))


@pytest.mark.slow
def test_read_only_installation_uses_its_cached_kernels(closed, run):
    root = _copy(closed)
    _hits(run(root))
    for path in [*(root / ".numba").rglob("*"), root / ".numba"]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = _run_without_roots_power(closed, root)
    assert _hits(done)[0] == 1
    assert done.stderr == ""
    for index in files_in(root / ".numba", "**/*.nb*"):
        index.parent.chmod(0o755)
        index.unlink()
        index.parent.chmod(0o555)
    done = _run_without_roots_power(closed, root)
    assert _hits(done) == (0, "None")
    assert f"{root / '.numba'}: cannot be written" in done.stderr


def _without_roots_power() -> None:
    """Bind root, too, to the rights of files, in the child (prctl PR_CAPBSET_DROP, CAP_DAC_OVERRIDE)."""
    if os.geteuid() == 0 and ctypes.CDLL(None).prctl(24, 1, 0, 0, 0):
        os._exit(99)
