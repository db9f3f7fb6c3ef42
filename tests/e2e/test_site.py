"""The site of the documentation: its links, its reference, what it fetches, and how it looks in a browser."""

from __future__ import annotations

import fcntl
import functools
import html.parser
import http.server
import importlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import click
import pytest
from browser import BROWSER, Page, browser

import structgen
from structgen.cli.main import cli

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(300)]

CHECKOUT: Final = Path(__file__).resolve().parents[2]
MODULES: Final = (
    *("diffusion", "drafters", "errors", "grammars", "policies", "potentials", "program", "samplers", "shapes"),
    "verification",
)

SCROLLED: Final = ".md-typeset pre > code, .md-typeset figure, .md-typeset__scrollwrap"


class _Document(html.parser.HTMLParser):
    """What a page refers to, and the places in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.unnamed: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        held = {name: value or "" for name, value in attrs}
        self.anchors |= {held[name] for name in ("id", "name") if name in held}
        if tag == "a" and "href" in held:
            self.links.append(held["href"])
        elif tag == "link":
            self.fetched.append(held.get("href", ""))
        self.fetched += [held[name] for name in ("src", "srcset", "poster", "data") if name in held]
        if tag == "img" and not held.get("alt"):
            self.unnamed.append(str(held))
        if tag == "svg" and held.get("role") == "img" and not held.get("aria-label"):
            self.unnamed.append(str(held))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built once for all processes that test it."""
    pytest.importorskip("zensical", reason="needs zensical: make docs")
    folder = tmp_path_factory.getbasetemp()
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    target = shared / "site"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            command = [sys.executable, "docs/site/build.py", str(target)]
            done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.fixture(scope="module")
def documents(site: Path) -> dict[Path, _Document]:
    return {path: _Document(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


def test_links_lead_somewhere(site: Path, documents: dict[Path, _Document]) -> None:
    """Each link within the site leads to a file, and to a place in it if it names one."""
    assert len(documents) > 120
    broken = []
    for path, document in documents.items():
        if path.name == "404.html":  # its links are absolute: it stands for any address
            continue
        for link in document.links:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            found = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if found.is_dir():
                found /= "index.html"
            is_right = found.is_file() and (
                not parts.fragment or found not in documents or unquote(parts.fragment) in documents[found].anchors
            )
            broken += [] if is_right else [f"{path.relative_to(site)}: {link}"]
    assert broken == []


def test_nothing_is_fetched_from_elsewhere(site: Path, documents: dict[Path, _Document]) -> None:
    """No page and no style sheet names a script, style, font or picture of another host."""
    for path, document in documents.items():
        assert [url for url in document.fetched if urlsplit(url).netloc] == [], path
    for path in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", path.read_text(encoding="utf-8")) == [], path


def test_pictures_have_words(documents: dict[Path, _Document]) -> None:
    """Every picture is described for those who do not see it."""
    assert [(path.name, document.unnamed) for path, document in documents.items() if document.unnamed] == []
    drawn = [path for path in CHECKOUT.glob("docs/**/*.svg") if "site" not in path.parts]
    assert len(drawn) >= 4
    texts = "".join(path.read_text(encoding="utf-8") for path in CHECKOUT.glob("docs/**/*.md"))
    assert [path.name for path in drawn if f"({path.name})" not in texts] == []


def test_no_markdown_is_left_in_the_text(site: Path) -> None:
    """Lists, tables, links and emphasis of all pages are read: none of their marks is in a paragraph."""
    marks = re.compile(r"\n\s*(?:[-*] |\d+\. |\|)|```|\]\([^)]*\)|\*\*\w|&lt;!--|\| ---")
    left = []
    for path in site.rglob("*.html"):
        body = path.read_text(encoding="utf-8").partition("<article")[2].partition("</article")[0]
        text = re.sub(r"<(pre|code|svg)\b.*?</\1>", "", body, flags=re.DOTALL)
        for tag in ("p", "li", "td"):
            for found in re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL):
                left += [f"{path.relative_to(site)}: {found[:80]!r}"] if marks.search(found) else []
    assert left == []


def test_every_public_name_is_in_the_reference(documents: dict[Path, _Document]) -> None:
    """Every name that users may rely on has a place in the reference, and so has every name of a public module."""
    anchors: set[str] = set()
    for path, document in documents.items():
        if "api" in path.parts:
            anchors |= document.anchors | {anchor.rpartition(".")[2] for anchor in document.anchors}
    lines = (CHECKOUT / "tests/record/public_names.txt").read_text(encoding="utf-8").splitlines()
    names = {line.rpartition(".")[2] for line in lines if line.startswith("structgen.")} - set(MODULES)
    assert len(names) > 150
    assert names - anchors == set()
    assert set(structgen.__all__) - anchors == set()
    for module in MODULES:
        page = next(path for path in documents if path.name == f"structgen.{module}.html")
        assert set(importlib.import_module(f"structgen.{module}").__all__) - documents[page].anchors == set()


def test_members_have_their_signatures(site: Path) -> None:
    """The reference of what everybody uses has methods, types and errors."""
    engine = (site / "reference/api/engine.md").read_text(encoding="utf-8")
    for name in ("accept", "fill_mask", "rollback", "fork", "explain", "forced_tokens", "is_accepting"):
        assert f"{{ #Matcher.{name} }}" in engine, name
    assert "fill_mask(self, bitmask: Any, row: int = 0, *, budget: int | None = None) -> None" in engine
    generation = (site / "reference/api/generation.md").read_text(encoding="utf-8")
    assert "    max_tokens: int | None = None," in generation
    assert "[`BudgetError`](structgen.errors.md#BudgetError): the shortest string" in generation


def test_every_option_is_in_the_reference(site: Path) -> None:
    """Each command and each of its options is on the page of commands."""
    page = (site / "reference/api/commands.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (structgen [\w ]+) \{.*?\}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    count = 0
    for path, command in _commands(cli, "structgen"):
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                for option in parameter.opts:
                    assert f"`{option}" in sections[path], f"{path} {option}"
                    count += 1
    assert count > 150


def _commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def test_machines_can_read_it(site: Path, documents: dict[Path, _Document]) -> None:
    """Each page has its Markdown beside it, with links that lead somewhere, and ``llms.txt`` lists the map."""
    listed = re.findall(r"^- \[.+?\]\((.+?)\): .", (site / "llms.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(listed) > 60
    assert [name for name in listed if not (site / name).is_file()] == []
    for path in documents:
        is_copied = path.parent == site / "playground"  # HTML of its own
        assert is_copied or path.name == "404.html" or path.with_suffix(".md").is_file(), path
    fence = re.compile(r"^( *)(`{3,}).*?^\1\2$", re.MULTILINE | re.DOTALL)
    for path in site.rglob("*.md"):
        text = re.sub(r"`[^`\n]+`", "", fence.sub("", path.read_text(encoding="utf-8")))
        for link in re.findall(r"\]\((?!https?:|#)([^)\s#]+)", text):
            assert (path.parent / link).exists(), f"{path.relative_to(site)}: {link}"


@pytest.mark.parametrize("path", [None, "playground/index.html"])
def test_the_playground_is_linked_where_it_is_built(path: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first page and that of the playground lead to the built one; without it, no link and no mark is left."""
    monkeypatch.syspath_prepend(str(CHECKOUT / "docs/site"))
    made = importlib.import_module("pages").Site(path)
    made.add(*importlib.import_module("build").generated())
    made.read_docs()
    for page, link in (
        ("index.md", "](playground/index.html)"),
        ("start/playground.md", "](../playground/index.html)"),
    ):
        assert (link in made.pages[page].markdown) == (path is not None)
        assert "built playground" not in made.pages[page].markdown


def test_the_search_has_every_page_of_the_map(site: Path) -> None:
    """The index of the search has the pages of the map and not the records beside them."""
    index = json.loads((site / "search.json").read_text(encoding="utf-8"))
    found = {item["location"].partition("#")[0] for item in index["items"]}
    assert {"start/install.html", "guides/vllm.html", "reference/api/engine.html", "ideas/masks.html"} <= found
    assert not {name for name in found if name.startswith("project/")}


# --- in a browser ---


class _Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def opened(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Page]]:
    """The address of the site, and a browser."""
    if BROWSER is None:
        pytest.skip("needs chromium")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Files, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with browser(tmp_path_factory.mktemp("browser")) as page:
            yield f"http://127.0.0.1:{server.server_port}/", page
    finally:
        server.shutdown()
        server.server_close()


SHOWN: Final = (
    *("index", "start/install", "start/compare", "guides/server", "reference/api/engine", "reference/api/commands"),
    *("reference/errors", "ideas/masks", "ideas/targets", "ideas/performance", "reference/json-schema"),
)


@pytest.mark.parametrize(("width", "is_dark"), [(390, True), (1300, False)])
def test_pages_fit_and_fetch_nothing(opened: tuple[str, Page], *, width: int, is_dark: bool) -> None:
    """On a phone and a desktop no page is wider than the screen, nothing fails, and only this host is asked."""
    address, page = opened
    page.size(width, 800, is_dark=is_dark)
    for name in SHOWN:
        page.open(f"{address}{name}.html")
        assert page.run("document.documentElement.scrollWidth <= innerWidth"), name
        hosts = page.run(
            "[...new Set(performance.getEntriesByType('resource').map(each => new URL(each.name).origin))]"
        )
        assert hosts == [address.rstrip("/")], name
        assert page.run("document.body.dataset.mdColorScheme") == ("slate" if is_dark else "default")
        scrolls = f"[...document.querySelectorAll({SCROLLED!r})].filter(each => each.scrollWidth > each.clientWidth)"
        page.wait(f"{scrolls}.every(each => each.tabIndex === 0)")  # with the keyboard too
    assert page.messages == []


def test_search_tabs_and_copies(opened: tuple[str, Page]) -> None:
    """The search finds a name, a tab shows its block and no other, and blocks have a button that copies them."""
    address, page = opened
    page.size(1300, 800)
    page.open(f"{address}start/install.html")
    assert page.run("document.querySelectorAll('.md-code__nav button, .md-clipboard').length") >= 5
    copied = "(() => { const block = document.querySelector('.language-console code');"
    copied += " block.setAttribute('data-md-copying', ''); return block.innerText; })()"
    assert page.run(copied).strip() == "pip install 'structgen-lm[llamacpp]'"
    shown = "[...document.querySelectorAll('.tabbed-block')].filter(each => each.offsetParent)"
    assert "structgen-lm[llamacpp]" in page.run(f"{shown}[0].innerText")
    page.run("document.querySelectorAll('.tabbed-labels label')[1].click()")
    page.wait(f"{shown}[0].innerText.includes('structgen-lm[models]')")
    assert page.run(f"{shown}.length") == 1
    page.run("document.querySelector('.tabbed-set input').focus({focusVisible: true})")
    assert page.run("getComputedStyle(document.querySelector('.tabbed-labels')).outlineStyle") == "auto"
    page.run("document.querySelector('.md-search__button').click()")
    page.wait("[...document.querySelectorAll('*')].some(each => each.shadowRoot?.querySelector('input'))")
    for letter in "budgeterror":
        page.call("Input.dispatchKeyEvent", type="keyDown", text=letter, key=letter)
        page.call("Input.dispatchKeyEvent", type="keyUp", key=letter)
    found = "[...document.querySelectorAll('*')].map(each => each.shadowRoot?.textContent || '').join()"
    page.wait(f"{found}.includes('structgen.errors')")
