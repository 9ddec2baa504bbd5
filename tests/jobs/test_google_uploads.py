"""Files that Lastkey writes to Google's store, while their uploads fail for a while, or for good."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import unquote

import pytest

from lastkey.udfs.storage import Root, open_output, open_root
from tests.builders.cloud_servers import gcs_server
from tests.builders.s3_proxy import CUT, HALF, LOSE, Fault, S3Proxy, s3_proxy
from tests.builders.s3_server import environment

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
        yield proxy


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
