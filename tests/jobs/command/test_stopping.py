"""The first Ctrl-C or SIGTERM requests the end of a run; the second one terminates the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from lastkey.jobs.command import stopping
from lastkey.jobs.command.stopping import InterruptedRunError, Stop, TerminatedError, await_result, stoppable

PATIENCE = 60.0
ROOT = Path(__file__).resolve().parents[3]
# Python drops a KeyboardInterrupt that comes in a callback of importlib's, as where a weak reference ends
INTERRUPTS = """
import os, signal, sys, weakref
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["AT"]:
            thing = type("Thing", (), {})()
            self.reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT))
            del thing
sys.meta_path.insert(0, Interrupts())
"""


@pytest.fixture(autouse=True)
def handlers(monkeypatch):
    """Handle signals as the command line does; restore the handlers afterwards."""
    monkeypatch.setattr(stopping, "_SAME_SECONDS", 0.0)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, lambda *_: None)
    with stopping.signals_handled():
        yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, InterruptedRunError), (signal.SIGTERM, TerminatedError)])
def test_first_signal_requests_a_stop_and_second_signal_terminates(number, kind, caplog):
    before = signal.getsignal(number)
    with stoppable() as stop:
        assert not stop.is_asked
        signal.raise_signal(number)
        assert type(stop.asked.result(PATIENCE)) is kind
        with pytest.raises(InterruptedRunError):
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(number) == signal.SIG_DFL  # a third signal has its default effect
    for thread in threading.enumerate():
        if thread.name == "signals":  # it logs after it has asked
            thread.join(PATIENCE)
    assert "a second signal ends the run at once" in caplog.text
    assert signal.getsignal(number) is before


def test_earlier_signal_handlers_are_restored():
    before = signal.getsignal(signal.SIGTERM)
    with stoppable():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_simultaneous_signals_count_once(monkeypatch):
    """`timeout` sends it to the process, and to its group."""
    monkeypatch.setattr(stopping, "_SAME_SECONDS", 3600.0)
    with stoppable() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert isinstance(stop.asked.result(PATIENCE), TerminatedError)


def test_a_signal_that_is_ignored_stays_ignored():
    """nohup does this, and a shell for background commands."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stoppable() as stop:
        signal.raise_signal(signal.SIGINT)
    assert not stop.is_asked


def test_thread_leaves_signal_handlers_unchanged():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work():
        with stoppable() as stop:
            seen.append((stop.is_asked, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(PATIENCE)
    assert seen == [(False, before)]


def test_first_stop_reason_is_kept():
    stop, why = Stop(), TerminatedError()
    stop.request_end(why)
    stop.request_end(InterruptedRunError())
    assert stop.asked.result() is why


def test_signal_delivered_to_another_thread_is_handled():
    """No event wakes the main thread in this case."""
    main, never = threading.get_native_id(), Future()
    stat = Path(f"/proc/self/task/{main}/stat")

    def work():
        asleep = 0
        started.wait(PATIENCE)
        while asleep < 100:  # each look lets the main thread continue, so that it waits for nothing but the future
            asleep = asleep + 1 if stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "S" else 0
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        if not heard.wait(PATIENCE):
            slept.append(PATIENCE)
            never.set_result(None)

    slept: list[float] = []
    started, heard, thread = threading.Event(), threading.Event(), threading.Thread(target=work)
    signal.signal(signal.SIGTERM, stopping.terminate)
    thread.start()
    with pytest.raises(TerminatedError):
        started.set()  # only now, for start() sleeps too
        await_result(never)
    heard.set()
    thread.join(PATIENCE)
    assert slept == []


@pytest.mark.parametrize("module", ["lastkey.jobs.command.cli", "lastkey.jobs.compact.job"])
def test_ctrl_c_while_modules_are_imported_ends_the_process(module, tmp_path):
    """The interrupt is neither lost nor printed as a stack trace."""
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTS)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "AT": module}
    words = ("compact", ROOT / "examples" / "archive", "--store", tmp_path / "store", "--topics", "users")
    completed = subprocess.run(
        [sys.executable, "-m", "lastkey", *words, "--cleanup-policy", "compact"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (completed.returncode, completed.stdout, completed.stderr) == (-signal.SIGINT, "", "")
    assert not (tmp_path / "store").exists()
