"""A headless Chromium, driven by Selenium: pages from files, at a width, light or dark, with console messages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # it takes half a second to load, and all tests are collected where few are run
    from selenium.webdriver import Chrome

INSTALL = "apt-get install -y --no-install-recommends chromium chromium-driver"


def found_or_installed() -> tuple[str, str]:
    """Return the paths of Chromium and its driver; install them as root on Debian, else say what to install."""
    paths = shutil.which("chromium"), shutil.which("chromedriver")
    if None in paths and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in ("apt-get update -q", INSTALL):
            completed = subprocess.run(
                command.split(), env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert completed.returncode == 0, f"{command}: {completed.stdout[-1000:]}{completed.stderr[-1000:]}"
        paths = shutil.which("chromium"), shutil.which("chromedriver")
    if paths[0] is None or paths[1] is None:
        raise FileNotFoundError(f"these tests need Chromium and its driver: {INSTALL}")
    return paths[0], paths[1]


@contextmanager
def chromium() -> Iterator[Chrome]:
    """Yield a browser; `look` shows it pages."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    browser, driver = found_or_installed()
    options = ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = Chrome(options, Service(driver))
    try:
        yield chrome
    finally:
        chrome.quit()


def look(chrome: Chrome, page: Path, *, width: int, dark: bool = False, shot: Path | None = None) -> dict[str, Any]:
    """Open a page, and tell: `requests` (all URLs that were asked for), `console` (what it complained of).

    shot: where a picture of the whole page goes.
    """
    for kind in ("browser", "performance"):
        chrome.get_log(kind)  # discard earlier messages
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    chrome.get(page.as_uri())
    if shot is not None:
        height = chrome.execute_script("return document.documentElement.scrollHeight")
        metrics["height"] = min(int(height), 12_000)
        chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        chrome.save_screenshot(str(shot))
    events = [entry["message"] for entry in chrome.get_log("performance")]
    return {"requests": _requests(events), "console": [entry["message"] for entry in chrome.get_log("browser")]}


def _requests(events: list[str]) -> list[str]:
    messages = [json.loads(event)["message"] for event in events]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
