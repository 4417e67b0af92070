"""The site that Sphinx builds from docs/: what readers, search engines and screen readers need of each page.

Needs the dependency group ``docs``: ``.ci/run`` installs it. ``AIORATE_SITE`` may name the folder of a site that is built already.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NEEDED = ("sphinx", "furo", "myst_parser", "sphinx_copybutton")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(any(importlib.util.find_spec(name) is None for name in NEEDED), reason="the dependency group docs is not installed"),
]


class Page(HTMLParser):
    """What the tests ask of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = path.read_text(encoding="utf-8")
        self.descriptions: list[str] = []
        self.headings: list[int] = []
        self.links: list[str] = []
        self.loaded: list[str] = []  # by the browser, without a click
        self.ids: list[str] = []
        self.bare: list[str] = []  # pictures without a description
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids += [given["id"]] if "id" in given else []
        if tag == "meta" and given.get("name") == "description":
            self.descriptions.append(given["content"])
        elif re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        elif tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and given.get("rel") in ("stylesheet", "shortcut icon", "prefetch"):
            self.loaded.append(given["href"])
        elif tag in ("script", "img", "iframe") and "src" in given:
            self.loaded.append(given["src"])
        if tag == "img" and not given.get("alt", "").strip():
            self.bare.append(given["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    folder = Path(os.environ.get("AIORATE_SITE") or tmp_path_factory.mktemp("site") / "html").resolve()
    if not (folder / "index.html").exists():
        command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E", "-d", str(tmp_path_factory.mktemp("trees"))]
        done = subprocess.run([*command, str(DOCS), str(folder)], cwd=DOCS.parent, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return {path: Page(path) for path in sorted(folder.rglob("*.html")) if "_static" not in path.parts}


def test_every_page_describes_itself_and_its_pictures(site: dict[Path, Page]) -> None:
    """Search engines show the description, and screen readers move by headings. No two headings have one name."""
    written = {path: page for path, page in site.items() if (DOCS / f"{path.stem}.md").exists()}
    assert len(written) > 10
    for path, page in written.items():
        jumps = [pair for pair in zip(page.headings, page.headings[1:], strict=False) if pair[1] > pair[0] + 1]
        assert (1, 1, []) == (page.headings.count(1), page.headings[0], jumps), path
        assert [] == page.bare, path
        assert len(page.ids) == len(set(page.ids)), path
        assert [True] == [50 <= len(description) <= 160 for description in page.descriptions], path


def test_every_link_within_the_site_leads_somewhere(site: dict[Path, Page]) -> None:
    """To a page that exists, and to a section of it."""
    for path, page in site.items():
        for link in page.links:
            parts = urlsplit(link)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not parts.scheme:
                assert target.exists(), f"{path}: {link}"
                assert not parts.fragment or target not in site or unquote(parts.fragment) in site[target].ids, f"{path}: {link}"


def test_no_page_loads_anything_from_elsewhere(site: dict[Path, Page]) -> None:
    """No fonts, scripts or pictures of other hosts: the site works without a network, and tells nobody who reads it."""
    for path, page in site.items():
        assert [link for link in page.loaded if urlsplit(link).scheme or link.startswith("//")] == [], path
