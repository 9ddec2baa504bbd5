"""Builds examples/kubernetes/Containerfile without a builder, and compacts in the result as the CronJob does.

Each step of the file is done in a bare Debian root, by chroot. Then its user, who owns nothing but the store, compacts
the example archive, which is mounted read only. Needs root, debootstrap (apt install debootstrap) and a network; ten
minutes and 3 GB in FOLDER, which must be new:

    python -m tests.schedules.bare_root FOLDER
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "examples/kubernetes/Containerfile"
SUITES = {"docker.io/library/debian:12-slim": "bookworm"}
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"}
KEPT = ("PIP_INDEX_URL", "http_proxy", "https_proxy", "no_proxy")  # package index and proxy of this machine
CERTIFICATES = "/etc/ssl/of_the_machine.crt"  # in the root: those of PIP_CERT, if that is set; JAVAS: Debian's for Java
JAVAS = "/etc/ssl/of_the_machine.cacerts"


def steps(text: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a Containerfile, each with the rest of its line."""
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word, rest


def run(root: Path, *words: str, user: str = "0") -> None:
    """Run a command in the root."""
    environment = ENVIRONMENT | {name: os.environ[name] for name in KEPT if name in os.environ}
    if (root / CERTIFICATES[1:]).exists():
        java = f"-Djavax.net.ssl.trustStore={JAVAS}"
        environment |= {"PIP_CERT": CERTIFICATES, "SSL_CERT_FILE": CERTIFICATES, "JAVA_TOOL_OPTIONS": java}
    subprocess.run(["chroot", f"--userspec={user}:{user}", str(root), *words], env=environment, check=True)


def copy(root: Path, names: list[str], to: str) -> None:
    """Copy files into a folder, or one folder to another place, as COPY does."""
    for name in names:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".numba")
            shutil.copytree(ROOT / name, root / to[1:], symlinks=True, ignore=ignored, dirs_exist_ok=True)
        else:
            (root / to[1:]).mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / to[1:])


def main(root: Path) -> None:
    """Do every step, then compact. All mounts are in a namespace of this process."""
    user, entry = "0", []
    for word, rest in steps(FILE.read_text()):
        started = time.perf_counter()
        match word:
            case "FROM":
                subprocess.run(["debootstrap", "--variant=minbase", SUITES[rest], str(root)], check=True)
                for name in ("dev", "proc"):
                    subprocess.run(["mount", "--rbind", f"/{name}", str(root / name)], check=True)
                shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
                if certificates := os.environ.get("PIP_CERT"):
                    (root / "etc/ssl").mkdir(exist_ok=True)
                    shutil.copy(certificates, root / CERTIFICATES[1:])
                    shutil.copy("/etc/ssl/certs/java/cacerts", root / JAVAS[1:])
            case "RUN":
                run(root, "sh", "-c", rest)
            case "COPY":
                *names, to = rest.split()
                copy(root, names, to)
            case "ENV":
                ENVIRONMENT.update([rest.split("=", 1)])
            case "USER":
                user = rest
            case "ENTRYPOINT":
                entry = json.loads(rest)
            case _:
                raise ValueError(f"{FILE}: {word}: an instruction that this script does not know")
        print(f"{word} {rest[:60]}: {time.perf_counter() - started:.1f} s", flush=True)
    for name in ("archive", "settings", "store"):
        (root / name).mkdir()
    os.chown(root / "store", int(user), int(user))
    subprocess.run(["mount", "--bind", str(ROOT / "examples/archive"), str(root / "archive")], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(root / "archive")], check=True)
    shutil.copy(ROOT / "examples/topics.toml", root / "settings")
    job = yaml.safe_load((FILE.parent / "compact.yaml").read_text())["spec"]["jobTemplate"]["spec"]
    for _ in range(2):  # the second one has nothing to do
        run(root, *entry, *job["template"]["spec"]["containers"][0]["args"], user=user)


if __name__ == "__main__":
    if sys.argv[2:] != ["unshared"]:
        os.execvp(
            "unshare",
            ["unshare", "--mount", sys.executable, "-m", "tests.schedules.bare_root", sys.argv[1], "unshared"],
        )
    main(Path(sys.argv[1]))
