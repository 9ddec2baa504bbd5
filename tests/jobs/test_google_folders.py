"""An archive in Google's store as most programs upload it: objects alone, no folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyarrow import fs as pafs

from lastkey.jobs.command import cli
from lastkey.logformat.locations import file_system
from tests.builders.cloud_servers import gcs_server
from tests.builders.trees import files_of

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "archive"
NOW = ("--config", ROOT / "examples" / "topics.toml", "--now", "1795300000000")
THREADS = ("--engine", "threads")

pytestmark = [pytest.mark.slow, pytest.mark.clouds]


def run(*words: object) -> dict:
    done = CliRunner().invoke(cli.lastkey, [*map(str, words), "--json"])
    assert done.exit_code == 0, (words, done.stdout, done.stderr)
    return json.loads(done.stdout)


def files_below(filesystem: pafs.FileSystem, folder: str) -> set[str]:
    found = filesystem.get_file_info(pafs.FileSelector(folder, recursive=True))
    return {info.path[len(folder) + 1 :] for info in found if info.is_file}


def test_an_archive_of_objects_alone(tmp_path):
    """As in a bucket with folders, vacuum finds the generations that nobody needs."""
    with gcs_server():
        filesystem, path = file_system("gs://logs/archive")
        for name, data in files_of(EXAMPLE).items():
            with filesystem.open_output_stream(f"{path}/{name}", compression=None) as stream:
                stream.write(data)
        for archive, store in (("gs://logs/archive", "gs://logs/store"), (EXAMPLE, tmp_path / "store")):
            for _ in range(2):
                run("compact", archive, "--store", store, *NOW, *THREADS, "--force", "--sealed")
        freed = [
            run("vacuum", "--store", store, "--grace-hours", "0")["files"]
            for store in ("gs://logs/store", tmp_path / "store")
        ]
        assert freed[0] == freed[1] > 30
        assert len(files_below(filesystem, "logs/store/segments")) == len(files_of(tmp_path / "store" / "segments"))
        run("restore", "--store", "gs://logs/store", "--output", "gs://logs/restored")
        run("restore", "--store", tmp_path / "store", "--output", tmp_path / "restored")
        assert files_below(filesystem, "logs/restored") == set(files_of(tmp_path / "restored"))
