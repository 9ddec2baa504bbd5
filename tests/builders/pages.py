"""The pages of `report`, as a browser reads them."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

from lastkey.jobs import report

SCRIPT = Path(report.__file__).with_name("templates") / "page.js"


class Page(HTMLParser):
    """Elements of a page, and every attribute that could make it load something else."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record an element."""
        self.tags.append(tag)
        if tag == "script":
            assert attrs == []
            self.scripts.append("")
        self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href", "srcset", "data", "action") and v]
        assert not [k for k, _ in attrs if k.startswith("on")], attrs

    def handle_data(self, data: str) -> None:
        """Record the text of a script."""
        if self.lasttag == "script" and self.cdata_elem == "script":
            self.scripts[-1] += data


def needs_nothing_else(text: str) -> None:
    """Check that a page loads nothing, and runs at most the page's own script, whose hash its policy names."""
    page = Page(text)
    assert "iframe" not in page.tags
    assert page.scripts in ([], [SCRIPT.read_text()])
    allowed = [f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in page.scripts]
    assert re.findall(r"script-src ([^;\"]*)", text) == allowed
    assert [link for link in page.links if not link.startswith(("#", "data:,"))] == []
    assert set(re.findall(r"url\(([^)]*)\)", text)) == {u for u in re.findall(r"url\(([^)]*)\)", text) if u[0] == "#"}
    assert "@import" not in text and "default-src 'none'" in text
    ids = re.findall(r' id="([^"]*)"', text)
    assert len(ids) == len(set(ids)), "plots must not share their clip paths"
