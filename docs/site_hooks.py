"""Hooks of mkdocs: pages from outside docs/, generated pages, and links that work on a forge and on the site.

Pages link to files of the repository by relative paths, as a forge shows them; generated pages begin a link with /
for a path below docs/. A page of the nav that is not below docs/ is named by its path from the root. Other files that
pages link to become files of the site.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs import reference_pages

ROOT: Final = Path(__file__).resolve().parent.parent
_LINK: Final = re.compile(r"(?<=\]\()(?!https?:|mailto:)([^)#\s]*)(?=[#)])")
_HTML: Final = re.compile(r'(?:(?<=\ssrc=")|(?<=\shref=")|(?<=\ssrcset="))(?!https?:)([^"#]+)(?=")')
_NAME: Final = re.compile(r"(?<=<td><code>)[^<\s]{12,}(?=</code></td>)")  # an option, setting or field in a table
_START: Final = "README.md"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, the pages of the nav from outside docs/, and the files that pages link to."""
    for uri, text in reference_pages.pages().items():
        files.append(File.generated(config, uri, content=text))
    files.append(File.generated(config, "index.md", abs_src_path=str(ROOT / _START)))
    for uri in _named(config.nav):
        if files.get_file_from_path(uri) is None and (ROOT / uri).is_file():
            files.append(File.generated(config, uri, abs_src_path=str(ROOT / uri)))
    for page in files.documentation_pages():
        for target in _targets(page):
            uri = _uri(target)
            if files.get_file_from_path(uri) is None and (ROOT / target).is_file():
                files.append(File.generated(config, uri, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make the links of a page lead to where the site has their targets."""
    here = _path(page.file)

    def linked(match: re.Match[str]) -> str:
        if not match[0]:
            return ""
        return posixpath.relpath(_uri(_resolved(here, match[0])), posixpath.dirname(page.file.src_uri) or ".")

    def shown(match: re.Match[str]) -> str:
        target = files.get_file_from_path(_uri(_resolved(here, match[0])))
        return quote(target.url_relative_to(page.file)) if target else match[0]

    return _HTML.sub(shown, _LINK.sub(linked, markdown))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let long names in tables break after a dot, underscore or hyphen: on a telephone a column is narrower."""
    return _NAME.sub(lambda match: re.sub(r"(?<=\w)[._-](?=\w)", r"\g<0><wbr>", match[0]), html)


def _named(nav: Any) -> list[str]:
    """Return the pages that the nav names."""
    if isinstance(nav, str):
        return [nav]
    return [uri for one in (nav.values() if isinstance(nav, dict) else nav or []) for uri in _named(one)]


def _path(file: File) -> str:
    """Return the path of a page's source from the root of the repository; of a generated page that it would have."""
    if file.abs_src_path:
        return Path(file.abs_src_path).resolve().relative_to(ROOT).as_posix()
    return f"docs/{file.src_uri}"


def _targets(page: File) -> list[str]:
    here = _path(page)
    links = (*_LINK.findall(page.content_string), *_HTML.findall(page.content_string))
    return [_resolved(here, link) for link in links if link]


def _resolved(here: str, link: str) -> str:
    """Return the path that a link leads to, from the root."""
    start = "docs" if link.startswith("/") else posixpath.dirname(here)
    return posixpath.normpath(posixpath.join(start, link.lstrip("/")))


def _uri(path: str) -> str:
    """Return the path of a file of the repository on the site."""
    return "index.md" if path == _START else path.removeprefix("docs/")
