"""Texts from an archive must not control a terminal: the command line on a pty and in a pipe; the page."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading
import tty
import unicodedata
from pathlib import Path

import pytest

from lastkey.jobs.command.reporting import JobReport
from tests.builders.logs import write_partition

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
HOSTILE = "\x1b]0;owned\x07\x1b[2Jred\x08\x00\x9b31m\u202eevil\u2066\u200f\x7f"
SHOWN = r"\x1b]0;owned\x07\x1b[2Jred\x08\x00\x9b31m\u202eevil\u2066\u200f\x7f"
BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
FOLDER = "dir\x1b[31m\u202e"


def active(text: str) -> set[str]:
    """Return the characters that do something to a terminal, by Python's own tables, except tab and newline."""
    return {
        c for c in text
        if (unicodedata.category(c) == "Cc" and c not in "\t\n") or unicodedata.bidirectional(c) in BIDI
        or c in "\u200e\u200f\u061c\u2028\u2029\x9b"
    }  # fmt: skip


def hostile_archive(folder):
    write_partition(folder / "archive" / FOLDER / "users-0", f"a=1 {HOSTILE}={HOSTILE} | b=2 a=3 || c=4")
    return folder / "archive"


def on_a_terminal(*words, no_colour: str = "1") -> tuple[int, str, str]:
    """Return (exit code, stdout, stderr) of a Python, each on a terminal of its own that passes bytes on unchanged."""
    ends, texts, threads = [pty.openpty(), pty.openpty()], [bytearray(), bytearray()], []
    for _, inner in ends:
        tty.setraw(inner)
    process = subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=ends[0][1],
        stderr=ends[1][1], env={**os.environ, "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1", "NO_COLOR": no_colour},
    )  # fmt: skip
    for (outer, inner), text in zip(ends, texts, strict=True):
        os.close(inner)
        threads.append(threading.Thread(target=_drain, args=(outer, text)))
        threads[-1].start()
    code = process.wait(120)
    for thread in threads:
        thread.join(60)
    return code, texts[0].decode(), texts[1].decode()


def _drain(outer: int, text: bytearray) -> None:
    try:
        while part := os.read(outer, 65536):
            text += part
    except OSError:  # EIO: no writer is left
        pass
    finally:
        os.close(outer)


def into_a_pipe(*words) -> tuple[int, str, str]:
    completed = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"},
    )  # fmt: skip
    return completed.returncode, completed.stdout.decode(), completed.stderr.decode()


ONE_PROCESS = """
import json, sys
from lastkey.jobs.command import cli
for words in json.loads(sys.argv[1]):
    code = cli.main(words)
    for end in (sys.stdout, sys.stderr):
        end.write(f"\\n-- {code} --\\n")
        end.flush()
"""


def in_one_process(run, commands) -> list[tuple[int, str, str]]:
    """Return (exit code, stdout, stderr) of each; run: on_a_terminal or into_a_pipe."""
    done, *written = run("-c", ONE_PROCESS, json.dumps(commands))
    assert done == 0, written
    out, err = (re.split(r"\n-- (\d+) --\n", text) for text in written)
    assert (out[1::2], out[-1], err[-1]) == (err[1::2], "", "")
    results = list(zip(map(int, out[1::2]), out[:-1:2], err[:-1:2], strict=True))
    assert len(results) == len(commands)
    return results


PLACE = r"dir\x1b[31m\u202e"
JOBS = [
    (["inspect"], 3, PLACE), (["verify"], 3, PLACE), (["reindex", "--check"], 3, PLACE),
    (["lookup", "--offset", "0"], 3, PLACE), (["lookup", "--sizing"], 3, PLACE),
    (["inspect", "--topics", "x\x1b"], 2, r"matches x\x1b;"),
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`archive`; `damaged/archive`: damage that is reported with the path, and so with the folder's name."""
    folder = tmp_path_factory.mktemp("hostile")
    hostile_archive(folder)
    log = max((hostile_archive(folder / "damaged") / FOLDER / "users-0").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[16] = 9  # the first batch's magic
    log.write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def on_terminals(folder):
    """(exit code, stdout, stderr) of the records as text, as JSON; of a path that is not there; of each of JOBS: one
    after the other in one process on one pair of terminals.
    """
    words, damaged = ["inspect", f"{folder}/archive", "--print", "data"], f"{folder}/damaged/archive"
    commands = [words, [*words, "--json"], ["verify", f"{folder}/no\x1b[5mwhere", "--json"]]
    commands += [[first, damaged, *rest] for (first, *rest), *_ in JOBS]
    return in_one_process(on_a_terminal, [[*words, "--no-progress"] for words in commands])


@pytest.fixture(scope="module")
def in_pipes(folder):
    """Print the records as text and as JSON, and a report, whose page is `page.html`."""
    words = ["inspect", f"{folder}/archive", "--print", "data"]
    report = ["report", f"{folder}/archive/{FOLDER}", "--output", f"{folder}/page.html"]
    return in_one_process(into_a_pipe, [words, [*words, "--json", "--no-progress"], report])


def test_control_characters_of_records_are_escaped_on_a_terminal_only(on_terminals, in_pipes):
    (code, out, err), (_, piped, _) = on_terminals[0], in_pipes[0]
    assert code == 0
    assert f"key: {SHOWN} payload: {SHOWN}" in out
    assert r"Non-consecutive offsets in " in err and r"dir\x1b[31m\u202e" in err
    assert active(out + err) == set()
    assert f"key: {HOSTILE} payload: {HOSTILE}" in piped
    assert piped.count("\n") == out.count("\n")


def test_json_output_is_the_same_on_a_terminal_and_in_a_pipe(on_terminals, in_pipes):
    (code, out, _), piped = on_terminals[1], in_pipes[1]
    assert (code, out) == piped[:2]
    assert active(out) == set()
    assert HOSTILE in {json.loads(line).get("key") for line in out.splitlines()}


@pytest.mark.parametrize("number", range(len(JOBS)), ids=[" ".join(words) for words, *_ in JOBS])
def test_control_characters_of_names_are_escaped_in_reports_and_errors(on_terminals, number):
    (_, code, text), (output, out, err) = JOBS[number], on_terminals[3 + number]
    assert output == code, out + err
    assert active(out + err) == set()
    assert text in out + err


def test_error_for_a_missing_path_escapes_control_characters(on_terminals):
    code, out, err = on_terminals[2]
    assert code == 2
    assert r"no\x1b[5mwhere" in err
    assert active(out + err) == set()
    assert "no\x1b[5mwhere" in json.loads(out)["error"]["path"]


def test_log_of_a_defect_escapes_control_characters():
    """Runs in a separate process, because pytest installs a handler that the command line does not have."""
    code = "import sys; from lastkey.jobs.command import cli; from lastkey.logformat.errors import stopped;"
    code += "cli.main(['--version']); stopped(ValueError('bad \\x1b[2J'), 'dir\\x1b[31m\\u202e')"
    _, _, err = on_a_terminal("-c", code)
    assert r"dir\x1b[31m\u202e: unexpected" in err and r"ValueError: bad \x1b[2J" in err
    assert active(err) == set()


def test_report_page_and_notebook_have_no_control_characters(folder, in_pipes):
    code, _, err = in_pipes[2]
    assert code == 0, err
    text = (folder / "page.html").read_text()
    assert r"dir\x1b[31m\u202e" in text
    assert active(text) == set()

    class Shown(JobReport):
        def to_text(self, width=0):
            return HOSTILE + "<"

    assert Shown()._repr_html_() == f"<pre>{SHOWN}&lt;</pre>"


def test_terminal_without_columns_shows_a_progress_bar():
    """As in containers and under `script`: tqdm shows nothing there. A new pty has none."""
    code, _, err = on_a_terminal(
        "-c",
        "from lastkey.jobs.command.progress import Bar\nimport os\nassert os.get_terminal_size(2).columns == 0\n"
        "bar = Bar()\nbar.start('compact', 4 << 20, 'B')\nbar.advance(1 << 20)\nbar.doing('x')\nbar.close()",
    )
    assert code == 0, err
    assert "compact:  25%" in err


def test_labels_have_colour_on_a_terminal_only(folder: Path) -> None:
    words = ["-m", "lastkey", "verify", f"{folder}/damaged/archive"]
    code, out, _ = on_a_terminal(*words, no_colour="")
    assert code == 3 and "\x1b[31m\x1b[1mproblem:\x1b[0m " in out
    assert not active(out.replace("\x1b[31m\x1b[1mproblem:\x1b[0m", "").replace("\x1b[33m\x1b[1mnote:\x1b[0m", ""))
    assert not active(on_a_terminal(*words)[1]), "NO_COLOR"
    assert "\x1b[1m" not in into_a_pipe(*words)[1]
