"""The pages of the documentation are linked and complete."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from pathlib import Path
from typing import Any

import pytest
from coverage_page import PAGE, page_with
from outcome_record import read_keywords

import structgen
from structgen.frontends.json_schema.normal.schema_reader import CONSTRAINTS
from structgen.frontends.json_schema.report import KEYWORDS

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = sorted([*CHECKOUT.glob("*.md"), *CHECKOUT.glob("docs/**/*.md"), *CHECKOUT.glob("examples/*.md")])
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)(?:#([^)\s]+))?\)")


def _anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, made from their words."""
    headings = re.findall(r"^#+ +(.*)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _section(page: Path, heading: str) -> str:
    return page.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every link to a file of the checkout leads to one, and to an existing heading if it names one."""
    for target, anchor in _LINK.findall(_FENCE.sub("", page.read_text())):
        if (page.parent / target).resolve().is_relative_to(CHECKOUT / "docs/reference/api"):
            continue  # made with the site, where its links are tested
        found = (page.parent / target).resolve()
        assert found.exists(), target
        assert not anchor or anchor in _anchors(found), f"{target}#{anchor}"


def test_every_page_is_on_the_map() -> None:
    """The index of the documentation links to every page beside it and to every decision."""
    index = (CHECKOUT / "docs" / "index.md").read_text()
    for page in (CHECKOUT / "docs").rglob("*.md"):
        if page.name != "index.md":
            assert f"({page.relative_to(CHECKOUT / 'docs')})" in index, page.name


def test_both_first_pages_have_the_table_of_tasks() -> None:
    """README and the page for newcomers list the same tasks with the same links."""
    rows = re.findall(r"^\| .* \|$", _section(CHECKOUT / "README.md", "Which part do I need?"), re.MULTILINE)
    assert len(rows) > 15
    page = (CHECKOUT / "docs/start/which-part.md").read_text()
    page = re.sub(r"\]\((?!\.\./)", "](docs/start/", page).replace("](../", "](docs/")
    assert rows == re.findall(r"^\| .* \|$", page, re.MULTILINE)


def test_public_names_are_taken_from_the_package() -> None:
    """No Python block imports a core name from the module that happens to define it."""
    for page in PAGES:
        for module, names in re.findall(
            r"^(?:>>> )?from (structgen[\w.]*) import (.+)$", page.read_text(), re.MULTILINE
        ):
            core = {name.strip() for name in names.split(",")} & set(structgen.__all__)
            assert not core, f"{page.name}: from {module} import {', '.join(core)}; write sg.NAME"


def test_every_page_with_python_is_run() -> None:
    """A test names each page that has Python blocks, in order to run them."""
    tests = "".join(path.read_text() for path in (CHECKOUT / "tests").rglob("*.py"))
    for page in (CHECKOUT / "docs").rglob("*.md"):
        name = page.relative_to(CHECKOUT / "docs").as_posix()
        assert "```python " not in page.read_text(), f"{name}: a block that is no program is marked as text"
        if "```python" in page.read_text():
            assert f'"{name}"' in tests, name


@pytest.mark.exhaustive
def test_names_of_peers_exist() -> None:
    """What the comparison says of llguidance and xgrammar has these names, in the versions that it states."""
    page = CHECKOUT / "docs/start/compare.md"
    peers = {
        "llguidance": ("llguidance", "llguidance.numpy", "llguidance.LLMatcher"),
        "xgrammar": ("xgrammar", "xgrammar.Grammar", "xgrammar.GrammarCompiler", "xgrammar.GrammarMatcher"),
    }
    table = re.findall(r"^\| .* \|$", _section(page, "Their names for our things"), re.MULTILINE)
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)] for row in table]
    for peer, homes in peers.items():
        module = pytest.importorskip(peer, reason=f"needs {peer}")
        assert f"{peer} {importlib.metadata.version(peer)}" in page.read_text()
        pytest.importorskip("llguidance.numpy")
        known = {name for home in homes for name in dir(_found(module, home))}
        column = rows[0].index(peer)
        named = [span for row in rows[2:] for span in re.findall(r"`([^`]+)`(?! in Lark)", row[column])]
        words = {re.split(r"[(*]", span)[0].split(".")[-1] for span in named}
        assert len(words) > 12
        assert {word for word in words if not any(name.startswith(word) for name in known)} == set(), peer


def _found(module: Any, path: str) -> Any:
    return functools.reduce(getattr, path.split(".")[1:], module)


def test_tables_of_keywords_and_formats_are_made_from_the_code() -> None:
    """The tables are what ``make outcomes`` would write."""
    assert PAGE.read_text() == page_with(PAGE.read_text(), read_keywords())


def test_every_keyword_that_is_read_is_in_the_table() -> None:
    """The table has each keyword with a reader as a constraint, and no other."""
    assert {name for name, keyword in KEYWORDS.items() if keyword.is_constraint} == set(CONSTRAINTS)


def test_every_error_has_cause_and_remedy() -> None:
    """The page of errors has each class and each code of the server, with a cause and a remedy."""
    page = (CHECKOUT / "docs/reference/errors.md").read_text()
    classes = dict(re.findall(r"^\| `(\w+)` \| `\w+` \| .+ \| (.+) \|$", page, re.MULTILINE))
    warnings = {name for name in structgen.errors.__all__ if name.endswith("Warning")}
    assert set(classes) == set(structgen.errors.__all__) - warnings
    assert all(f"`{name}`" in page for name in warnings)
    for name, base in re.findall(r"^\| `(\w+)` \| `(\w+)` \|", page, re.MULTILINE):
        assert base in [kind.__name__ for kind in getattr(structgen.errors, name).__mro__[1:]], name
    sources = (CHECKOUT / "structgen/integrations/server").glob("*.py")
    codes = set(re.findall(r"\bcode(?:: str)? ?= ?\"(\w+)\"", "".join(source.read_text() for source in sources)))
    assert len(codes) > 12
    assert set(re.findall(r"^\| `(\w+)` \| [45]\d\d \| .+ \| .+ \|$", page, re.MULTILINE)) == codes
