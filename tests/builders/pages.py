"""The pages of `report`, as a browser reads them."""

from __future__ import annotations

import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """Elements of a page, and every attribute that could make it load something else."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take an element in."""
        self.tags.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href", "srcset", "data", "action") and v]
        assert not [k for k, _ in attrs if k.startswith("on")], attrs


def needs_nothing_else(text: str) -> None:
    """Check that a page loads nothing and runs nothing."""
    page = Page(text)
    assert "script" not in page.tags and "iframe" not in page.tags
    assert [link for link in page.links if not link.startswith(("#", "data:,"))] == []
    assert set(re.findall(r"url\(([^)]*)\)", text)) == {u for u in re.findall(r"url\(([^)]*)\)", text) if u[0] == "#"}
    assert "@import" not in text and "default-src 'none'" in text
    ids = re.findall(r' id="([^"]*)"', text)
    assert len(ids) == len(set(ids)), "plots must not share their clip paths"
