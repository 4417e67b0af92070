"""The site that Sphinx builds from docs/: what readers, search engines and screen readers need of each page.

Needs the dependency group ``docs``: ``.ci/run`` installs it, and runs these tests with the slow ones. ``AIORATE_SITE`` may name the folder
of a site that is built already.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import subprocess
import sys
import zlib
from collections import Counter
from functools import cache
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://github.com/aiorate/aiorate"
PUBLIC = (
    "aiorate",
    "aiorate.http",
    "aiorate.aiohttp",
    "aiorate.redis",
    "aiorate.adaptive",
    "aiorate.otel",
    "aiorate.asgi",
    "aiorate.testing",
)
NEEDED = ("sphinx", "furo", "myst_parser", "sphinx_copybutton")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(any(importlib.util.find_spec(name) is None for name in NEEDED), reason="the dependency group docs is not installed"),
]


class Page(HTMLParser):
    """What the tests ask of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.language = ""
        self.title = ""
        self.descriptions: list[str] = []
        self.headings: list[int] = []
        self.links: list[str] = []
        self.loaded: list[str] = []  # by the browser, without a click
        self.images: list[dict[str, str | None]] = []
        self.ids: list[str] = []
        self._where: list[str] = []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self._where.append(tag)
        if given.get("id"):
            self.ids.append(given["id"] or "")
        if tag == "html":
            self.language = given.get("lang") or ""
        elif tag == "meta" and given.get("name") == "description":
            self.descriptions.append(given.get("content") or "")
        elif re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        elif tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        elif tag == "link" and given.get("rel") in ("stylesheet", "shortcut icon", "prefetch"):
            self.loaded.append(given.get("href") or "")
        elif tag in ("script", "img", "iframe") and given.get("src"):
            self.loaded.append(given["src"] or "")
        if tag == "img":
            self.images.append(given)

    def handle_data(self, data: str) -> None:
        if self._where and self._where[-1] == "title" and "svg" not in self._where:
            self.title += data

    def handle_endtag(self, tag: str) -> None:
        while tag in self._where and self._where.pop() != tag:
            pass

    def leads_to(self, link: str) -> tuple[Path, str]:
        """The file and the section of a link within the site."""
        parts = urlsplit(link)
        return (self.path.parent / unquote(parts.path)).resolve() if parts.path else self.path, unquote(parts.fragment)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Page]:
    """Every page of the site, without the old addresses of pages that have moved."""
    folder = Path(os.environ.get("AIORATE_SITE") or tmp_path_factory.mktemp("site") / "html").resolve()
    if not (folder / "index.html").exists():
        command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-E", "-d", str(tmp_path_factory.mktemp("trees"))]
        done = subprocess.run([*command, str(ROOT / "docs"), str(folder)], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return {path: Page(path) for path in sorted(folder.rglob("*.html")) if "_static" not in path.parts}


def first_page(found: dict[Path, Page]) -> Path:
    """The first page of the site: a folder may have an index, too."""
    return min((path for path in found if path.name == "index.html"), key=lambda path: len(path.parts))


def named(found: dict[Path, Page], wrong: dict[Path, object]) -> dict[str, object]:
    """What is wrong, by the address of the page."""
    top = first_page(found).parent
    return {path.relative_to(top).as_posix(): what for path, what in wrong.items() if what}


def test_every_page_says_its_title_language_and_description(site: dict[Path, Page]) -> None:
    """Search engines show them, and screen readers need the language."""
    wrong: dict[Path, object] = {}
    for path, page in site.items():
        lengths = [len(description) for description in page.descriptions]
        if not (page.title.strip() and page.language == "en" and len(lengths) == 1 and 50 <= lengths[0] <= 160):
            wrong[path] = (page.title, page.language, page.descriptions)

    assert {} == named(site, wrong)


def test_no_two_pages_have_one_title(site: dict[Path, Page]) -> None:
    """In a list of results they could not be told apart."""
    counted = Counter(page.title for page in site.values())

    assert [] == [title for title, number in counted.items() if number > 1]


def test_headings_begin_at_one_and_skip_no_level(site: dict[Path, Page]) -> None:
    """Screen readers move by headings."""
    wrong: dict[Path, object] = {}
    for path, page in site.items():
        jumps = [pair for pair in zip(page.headings, page.headings[1:], strict=False) if pair[1] > pair[0] + 1]
        if page.headings.count(1) != 1 or page.headings[0] != 1 or jumps:
            wrong[path] = page.headings or "no heading"

    assert {} == named(site, wrong)


def test_every_link_within_the_site_leads_somewhere(site: dict[Path, Page]) -> None:
    """To a page that exists, and to a section of it."""
    wrong: dict[Path, object] = {}
    for path, page in site.items():
        dead = []
        for link in page.links:
            if urlsplit(link).scheme:
                continue
            target, section = page.leads_to(link)
            known = site[target].ids if target in site else []
            if not target.exists() or (section and section not in known and target.suffix == ".html"):
                dead.append(link)
        wrong[path] = dead

    assert {} == named(site, wrong)


def test_old_addresses_lead_to_pages_section_by_section(site: dict[Path, Page]) -> None:
    """A page that was split has a new page for each of its sections."""
    top = first_page(site).parent
    moved = {
        path: re.findall(r'"(?:[\w-]+": ")?([\w/]+)"', page.text.partition("<script>")[2].partition("</script>")[0])
        for path, page in site.items()
    }
    old = {path: pages for path, pages in moved.items() if "This page has moved" in site[path].text}

    assert {"howto_apis.html", "howto_llm.html", "howto_servers.html", "howto_sync.html"} <= {path.name for path in old}
    assert {} == named(site, {path: [page for page in pages if top / f"{page}.html" not in site] for path, pages in old.items()})
    assert all(pages for pages in old.values())


def test_every_page_leads_to_the_first_page_and_the_source(site: dict[Path, Page]) -> None:
    """Readers come from a search engine, to any page."""
    first = first_page(site)

    astray = {
        path: True
        for path, page in site.items()
        if first not in {page.leads_to(link)[0] for link in page.links} or REPOSITORY not in page.links
    }

    assert {} == named(site, dict(astray))


def test_no_section_name_is_used_twice_on_a_page(site: dict[Path, Page]) -> None:
    """A link to it would lead to the first of the two."""
    repeated = {path: [name for name, number in Counter(page.ids).items() if number > 1] for path, page in site.items()}

    assert {} == named(site, dict(repeated))


def test_every_picture_has_a_description(site: dict[Path, Page]) -> None:
    """Screen readers read it aloud."""
    bare = {path: [image.get("src") for image in page.images if not (image.get("alt") or "").strip()] for path, page in site.items()}

    assert {} == named(site, dict(bare))


def test_no_page_loads_anything_from_elsewhere(site: dict[Path, Page]) -> None:
    """No fonts, scripts or pictures of other hosts: the site works without a network, and tells nobody who reads it."""
    foreign = {path: [link for link in page.loaded if urlsplit(link).scheme or link.startswith("//")] for path, page in site.items()}

    assert {} == named(site, dict(foreign))


def test_signatures_show_only_what_users_write(site: dict[Path, Page]) -> None:
    """Parameters that exist to catch mistakes are not for readers."""
    reference = first_page(site).parent / "reference.html"
    shown = {
        path: re.findall("misplaced" if path != reference else r"misplaced|unknown: |\bNever\b", page.text) for path, page in site.items()
    }

    assert reference in site
    assert {} == named(site, dict(shown))


@cache
def public_names() -> list[str]:
    """What users may import."""
    return [f"{module}.{name}" for module in PUBLIC for name in import_module(module).__all__]


def test_every_public_name_can_be_linked_to(site: dict[Path, Page]) -> None:
    """The inventory of the reference lists what other projects may link to, and the search finds."""
    inventory = (first_page(site).parent / "objects.inv").read_bytes()
    lines = zlib.decompress(inventory.split(b"\n", 4)[4]).decode().splitlines()  # after four lines of text
    listed = {line.split()[0] for line in lines}

    def is_listed(name: str) -> bool:
        module, _, short = name.rpartition(".")
        thing = getattr(import_module(module), short)
        places = {name, f"aiorate.{short}"}
        if inspect.isclass(thing) or inspect.isfunction(thing):
            places.add(f"{thing.__module__}.{thing.__qualname__}")
        return bool(places & listed)

    assert [] == [name for name in public_names() if not is_listed(name)]
