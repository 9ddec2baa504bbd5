"""Notifications of a run's end: metrics that Prometheus' own parsers read, and posts that delay no run."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from prometheus_client.parser import text_string_to_metric_families as plain_families

from lastkey.jobs.command import ending
from lastkey.jobs.command.cli import main
from lastkey.jobs.command.ending import FAMILIES, RunMetrics, openmetrics
from lastkey.jobs.errors import DONE, PROBLEMS, USAGE
from tests.builders.logs import write_partition
from tests.builders.steps import at_step

ROOT = Path(__file__).resolve().parents[3]
TOML = '[defaults]\n"cleanup.policy" = "compact"\n"min.cleanable.dirty.ratio" = 0.0\n[job]\nengine = "threads"\n'
Samples = dict[tuple[str, str], float]  # name, and what distinguishes samples of one run


class Place:
    """An archive of one partition, its store, and a metrics file."""

    def __init__(self, root: Path) -> None:
        self.archive, self.store, self.config = root / "archive", root / "store", root / "c.toml"
        self.metrics = root / "lastkey.prom"
        write_partition(self.archive / "t-0", "a=1 b=1||a=2||")
        self.config.write_text(TOML)

    def compact(self, *more: str) -> int:
        arguments = ["compact", str(self.archive), "--store", str(self.store), "--config", str(self.config)]
        return main([*arguments, "--metrics-file", str(self.metrics), *more])

    def add_damaged(self) -> None:
        write_partition(self.archive / "u-0", "a=1||a=2||")
        (self.archive / "u-0" / f"{0:020}.log").write_bytes(b"\xff" * 100)

    def samples(self) -> Samples:
        return read(self.metrics.read_text())


def read(text: str) -> Samples:
    """Read the samples by both of Prometheus' parsers, which must agree. Its metrics are gauges with help and unit."""
    metric_families = list(open_families(text))
    both = []
    for families in (metric_families, list(plain_families(text))):
        rows = [sample for family in families for sample in family.samples]
        both.append({(row.name, row.labels.get("state") or row.labels.get("kind", "")): row.value for row in rows})
    assert both[0] == both[1]
    for family in metric_families:
        assert family.type == "gauge" and family.documentation == FAMILIES[family.name]
        assert family.unit == (unit if (unit := family.name.rpartition("_")[2]) in ("bytes", "seconds") else "")
    return both[0]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_compaction_writes_its_metrics(place: Place) -> None:
    assert place.compact() == DONE
    first = place.samples()
    assert first["lastkey_run_exit_code", ""] == DONE
    assert first["lastkey_run_partitions", "cleaned"] == first["lastkey_run_committed_partitions", ""] == 1
    assert first["lastkey_run_read_records", ""] == 3 and first["lastkey_run_kept_records", ""] == 2
    before, after = first["lastkey_run_before_bytes", ""], first["lastkey_run_after_bytes", ""]
    assert first["lastkey_run_saved_bytes", ""] == before - after > 0
    assert first["lastkey_last_success_timestamp_seconds", ""] == first["lastkey_run_end_timestamp_seconds", ""]
    assert first["lastkey_lag_partitions", ""] == 0  # the active segment is empty
    place.add_damaged()
    assert place.compact() == PROBLEMS
    second = place.samples()
    assert second["lastkey_run_exit_code", ""] == PROBLEMS
    assert second["lastkey_run_partitions", "uncleanable"] == 1
    assert sum(value for (name, _), value in second.items() if name == "lastkey_run_problems") == 1
    success = "lastkey_last_success_timestamp_seconds", ""
    assert second[success] == first[success]  # a failure keeps it
    assert second["lastkey_run_end_timestamp_seconds", ""] > second[success]
    assert second["lastkey_lag_partitions", ""] == 1 and second["lastkey_lag_bytes", ""] > 0
    assert [path.name for path in place.metrics.parent.iterdir() if path.name.startswith(".")] == []


def test_failed_run_writes_its_exit_code_to_the_metrics(place: Place, tmp_path: Path) -> None:
    write_partition(tmp_path / "archive" / "t-0", "a=1||")
    assert place.compact("--topics", "other") == USAGE
    metrics = place.samples()
    assert metrics["lastkey_run_exit_code", ""] == USAGE
    assert ("lastkey_last_success_timestamp_seconds", "") not in metrics


def test_every_job_with_the_metrics_option_writes_the_file(place: Place, tmp_path: Path) -> None:
    assert place.compact() == DONE
    store, archive = str(place.store), str(place.archive)
    jobs = (
        ["verify", archive],
        ["verify", "--store", store],
        ["reindex", archive, "--check"],
        ["vacuum", "--store", store],
    )
    for words in (*jobs, ["restore", "--store", store, "--output", str(tmp_path / "out")]):
        code = main([*words, "--metrics-file", str(place.metrics)])
        metrics = place.samples()
        assert metrics["lastkey_run_exit_code", ""] == code, words
        assert f'command="{words[0]}"' in place.metrics.read_text()
        assert ("lastkey_run_partitions", "") in {(name, "") for name, _ in metrics} or words[0] == "vacuum"


def test_an_empty_file_and_metrics_of_other_runs_are_replaced(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.metrics.touch()
    assert place.compact() == DONE
    assert main(["runs", "--store", str(place.store), "--format", "openmetrics"]) == DONE
    place.metrics.write_text(capsys.readouterr().out.partition("exit code 0\n")[2])
    assert place.metrics.read_text().startswith("# TYPE lastkey_")
    assert place.compact() == DONE
    assert place.samples()["lastkey_run_exit_code", ""] == DONE


def test_file_changed_during_the_run_is_kept(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    with at_step("wave planned", lambda: place.metrics.write_text("of another program")):
        assert place.compact() == DONE
    assert place.metrics.read_text() == "of another program"


def test_missing_folder_is_a_note(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.metrics = place.metrics.parent / "none" / "lastkey.prom"
    assert place.compact() == DONE
    message = f"--metrics-file: {place.metrics}: expected a folder {place.metrics.parent}, found none"
    assert f"note: not written: {message}" in capsys.readouterr().err


def test_metrics_of_runs_have_the_newest_run_of_each_job(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.compact()
    place.add_damaged()
    place.compact()
    main(["vacuum", "--store", str(place.store)])
    capsys.readouterr()
    assert main(["runs", "--store", str(place.store), "--format", "openmetrics"]) == DONE
    text = capsys.readouterr().out
    assert text.endswith("# EOF\n")
    read(text)
    codes = re.findall(r'^lastkey_run_exit_code\{command="(\w+)",store="[^"]+"\} (\d)$', text, re.MULTILINE)
    assert codes == [("compact", "3"), ("vacuum", "0")]
    assert len(re.findall("^lastkey_last_success_timestamp_seconds{", text, re.MULTILINE)) == 2


def test_names_with_quotes_and_line_ends_are_escaped() -> None:
    store = 'a"b\\c\nd\udcff'
    text = openmetrics([RunMetrics({"command": "compact", "store": store}, 1000, 3500, 0, 3.5, {"problems": {"x": 2}})])
    for families in (open_families, plain_families):
        labels = [sample.labels for family in families(text) for sample in family.samples]
        assert {label["store"] for label in labels} == {'a"b\\c\nd?'}
    assert read(text)["lastkey_run_duration_seconds", ""] == 2.5


# -- what is in examples/monitoring


def test_every_metric_of_the_examples_is_written() -> None:
    rules = yaml.safe_load((ROOT / "examples/monitoring/alerts.yml").read_text())
    dashboard = json.loads((ROOT / "examples/monitoring/dashboard.json").read_text())
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    expressions += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    named = {name for expr in expressions for name in re.findall(r"lastkey_\w+", expr)}
    assert named and named <= FAMILIES.keys()
    assert {rule["alert"] for group in rules["groups"] for rule in group["rules"]} >= {"LastkeyNoSuccess"}
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


# -- posts


@contextmanager
def answering(
    code: int, *, location: str = "", stays: threading.Event | None = None
) -> Iterator[tuple[str, list[Any]]]:
    """Answer posts on a free port. Yields the URL, and what was posted. stays: answers only after that."""
    posted: list[Any] = []

    class _Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posted.append((self.path, self.headers["Content-Type"], json.loads(body)))
            if stays is not None:
                stays.wait(60)
            self.send_response(code)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook/secret-token", posted
        finally:
            if stays is not None:
                stays.set()
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Post to loopback directly, whatever proxy the machine has."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def _noted(err: str) -> list[str]:
    return [line for line in err.splitlines() if line.startswith("note: --notify")]


def test_summary_is_posted_to_the_url(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.add_damaged()
    with answering(204) as (url, posted):
        assert place.compact("--notify", url) == PROBLEMS
        assert place.compact("--notify", url, "--topics", "other") == USAGE
    assert _noted(capsys.readouterr().err) == []
    (path, kind, summary), (_, _, failed) = posted
    assert (path, kind) == ("/hook/secret-token", "application/json")
    assert (summary["command"], summary["exit_code"], summary["store"]) == ("compact", PROBLEMS, str(place.store))
    assert summary["figures"]["partitions"] == {"cleaned": 1, "uncleanable": 1}
    assert len(summary["problems"]) == 1 and "u-0" in summary["problems"][0]
    assert (failed["exit_code"], failed["figures"]) == (USAGE, {})
    assert "other" in failed["error"]


@pytest.mark.parametrize("code", [500, 404, 302, 307])
def test_response_with_an_error_status_is_a_note(place: Place, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(204) as (elsewhere, elsewhere_posted), answering(code, location=elsewhere) as (url, posted):
        assert place.compact("--notify", url) == DONE
    assert (len(posted), elsewhere_posted) == (1, [])
    err = capsys.readouterr().err
    redirect = ", a redirect, which is not followed" if code < 400 else ""
    assert _noted(err) == [f"note: --notify {url.rpartition('/hook')[0]}: answered {code}{redirect}"]
    assert "secret-token" not in err


def test_unresponsive_server_ends_in_a_timeout(
    place: Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "PATIENCE", 0.3)
    with answering(204, stays=threading.Event()) as (url, _):
        assert place.compact("--notify", url) == DONE
    assert len(_noted(capsys.readouterr().err)) == 1


def test_refused_connection_is_a_note(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as bound:  # bound, without a listener
        bound.bind(("127.0.0.1", 0))
        assert place.compact("--notify", f"http://127.0.0.1:{bound.getsockname()[1]}/secret") == DONE
    (note,) = _noted(capsys.readouterr().err)
    assert note.endswith(": Connection refused")


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "hooks.example.com", "http://", "http://me:pw@host/", "http://h:x/", "http://h/a b", ""],
)
def test_invalid_notify_url_is_a_usage_error(place: Place, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.compact("--notify", url) == USAGE
    captured = capsys.readouterr()
    assert "pw" not in captured.err + captured.out
    assert not place.store.exists()


def test_posted_summary_is_limited_in_size(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "MOST_BYTES", 100)
    place.add_damaged()
    with answering(204) as (url, posted):
        assert place.compact("--notify", url) == PROBLEMS
    ((_, _, summary),) = posted
    assert (summary["problems"], summary["notes"]) == ([], [])
