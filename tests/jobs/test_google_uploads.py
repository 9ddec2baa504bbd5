"""Files that Lastkey writes to Google's store, while their uploads fail for a while, or for good."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote

import pytest
from pyarrow import fs as pafs

from lastkey.jobs.command.cli import main
from lastkey.jobs.store.paths import COMMITTED
from lastkey.logformat.names import LOG
from lastkey.udfs.storage import Root, open_output, open_root
from tests.builders.cloud_servers import gcs_server
from tests.builders.one_line import said_by
from tests.builders.s3_proxy import CUT, HALF, LOSE, Fault, S3Proxy, s3_proxy
from tests.builders.s3_server import environment, put

ROOT = Path(__file__).resolve().parents[2]
NOW = ("--config", str(ROOT / "examples" / "topics.toml"), "--now", "1795300000000", "--engine", "threads")
FAULTS = {
    "refused": Fault(status=503), "throttled": Fault(status=429), "cut": CUT, "half": HALF, "lost": LOSE,
    "twice": Fault(twice=True), "none": None,
}  # fmt: skip
CONTENTS = {  # in the pieces that are written; the last is sent in several parts
    "empty": [], "small": [bytes(range(200))], "large": [b"a" * 600_000, b"b" * 1_700_000, b"c" * 100],
}  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.clouds]


@pytest.fixture(scope="module")
def google() -> Iterator[S3Proxy]:
    """Yield a proxy before Google's store, to which the environment leads."""
    with gcs_server() as port, s3_proxy(port) as proxy, environment({"STORAGE_EMULATOR_HOST": proxy.url}):
        put(ROOT / "examples" / "archive", "gs://logs/archive")
        yield proxy


@pytest.fixture(autouse=True)
def without_faults_of_another_test(google: S3Proxy) -> None:
    google.decide = lambda method, path: None


def test_an_upload_of_which_one_or_two_requests_fail_is_whole(google: S3Proxy) -> None:
    """Each request of it in turn fails, and then with the one that follows it. The name of a file says how."""
    root, asked = open_root("gs://logs"), Counter[str]()

    def decide(method: str, path: str) -> Fault | None:
        found = re.search(r"name=(faults/(\w+)-(\w+)-(\d+)-(\d+))", unquote(path))
        if found is None:
            return None
        asked[found[1]] += 1
        first = int(found[4])
        return FAULTS[found[3]] if first <= asked[found[1]] < first + int(found[5]) else None

    google.decide = decide
    requests = {kind: asked[_upload(root, f"faults/{kind}-none-0-0")] for kind in CONTENTS}
    assert requests == {"empty": 2, "small": 2, "large": 5}
    names = [
        f"faults/{kind}-{fault}-{first}-{n}"
        for kind in CONTENTS for fault in FAULTS for first in range(1, requests[kind] + 1) for n in (1, 2)
    ]  # fmt: skip
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda name: _upload(root, name), names)) == names
    google.decide = lambda method, path: None
    for name in names:
        with root.filesystem.open_input_stream(root.full(name)) as file:
            assert file.read() == b"".join(CONTENTS[name.partition("/")[2].partition("-")[0]]), name


def _upload(root: Root, name: str) -> str:
    with open_output(root, name) as stream:
        for piece in CONTENTS[name.partition("/")[2].partition("-")[0]]:
            stream.write(piece)
    return name


REFUSED = {403: ("DeniedError", "access is denied"), 404: ("LostUploadError", "an upload was lost")}


@pytest.mark.parametrize("status", REFUSED)
@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize("file", [rf"[.]{LOG}", "manifest", "state/.*parquet"])
def test_an_upload_that_is_refused_for_good_is_the_buckets_fault(google, file, method, status, capsys) -> None:
    """No partition is set aside for it, no other run is named, and what was not written is not committed. 404: the
    server has forgotten an upload that had begun.
    """
    store = f"gs://logs/{file.strip('[].*').replace('/', '-')}-{method}-{status}"
    refused = re.compile(f"{method} .*{store.rpartition('/')[2]}/.*{file}")
    fault = Fault(status=status, code="Refused")
    google.decide = lambda method, path: fault if refused.match(f"{method} {unquote(path)}") else None
    code, line, error = said_by(capsys, "compact", "gs://logs/archive", "--store", store, *NOW)
    kind, said = REFUSED[status]
    assert (code, error["kind"]) == (5, kind)
    assert line.startswith(f"error: gs://logs at {google.url}: {said}: Refused; ")
    google.decide = lambda method, path: None
    assert main(["compact", "gs://logs/archive", "--store", store, *NOW, "--no-progress"]) == 0
    assert main(["verify", "--store", store, "--engine", "threads", "--no-progress"]) == 0


def test_a_bucket_that_is_denied_in_the_middle_of_a_run_is_no_damage(google, capsys) -> None:
    denied: list[str] = []

    def decide(method: str, path: str) -> Fault | None:
        if "orders-0/00000000000000000000.log" in unquote(path):
            denied.append(path)
        return Fault(status=403) if denied else None

    google.decide = decide
    code, _, error = said_by(capsys, "verify", "gs://logs/archive", "--engine", "threads")
    assert (code, error["kind"]) == (5, "DeniedError")


def test_a_file_committed_that_cannot_be_written_is_written_later(google) -> None:
    """The commit is made by then, so the run is done; whoever needs the file writes it."""
    google.decide = lambda method, path: Fault(status=403) if "/committed" in unquote(path) else None
    store = open_root("gs://logs/uncommitted")
    assert main(["compact", "gs://logs/archive", "--store", store.uri, *NOW, "--no-progress"]) == 0
    assert not _committed(store)
    google.decide = lambda method, path: None
    assert main(["vacuum", "--store", store.uri, "--no-progress"]) == 0
    assert len(_committed(store)) == 4


def _committed(store: Root) -> list[str]:
    found = store.filesystem.get_file_info(pafs.FileSelector(store.full("segments"), recursive=True))
    return [info.path for info in found if info.base_name == COMMITTED]
