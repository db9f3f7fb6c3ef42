"""The pages of the site as Markdown: those of ``docs``, generated ones, and all other files that they link to.

The Markdown in ``docs`` is that of GitHub, so that it can be read in the checkout.  Python-Markdown differs in a few
places, which are rewritten here; the Markdown that the site offers beside each page is the unchanged one.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["CHECKOUT", "Page", "Site"]

CHECKOUT: Final = Path(__file__).resolve().parents[2]
_DOCS: Final = CHECKOUT / "docs"
_TOOLS: Final = _DOCS / "site"
_FENCE: Final = re.compile(r"^( *)(```+).*?^\1\2[ \t]*$\n?", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]+)?(?=\))")
_CODE: Final = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_TABS: Final = re.compile(r"^<!-- tabs -->\n(.*?)^<!-- end of tabs -->$", re.MULTILINE | re.DOTALL)
_TAB: Final = re.compile(r"^\*\*(.+)\*\*$", re.MULTILINE)
_PICTURE: Final = re.compile(r"^!\[([^\]]+)\]\(([^)]+\.svg)\)$", re.MULTILINE)
_ITEM: Final = re.compile(r"^(?![-*>|#] |\d+\.)(\S.*)\n([-*] )", re.MULTILINE)
"""A list that follows a paragraph without a blank line."""
_PLAYGROUND: Final = re.compile(r"^<!-- the built playground: (.+) -->\n\n?", re.MULTILINE)
"""The text of a link to the built playground, on a line of its own: the checkout has no such file."""
_LANGUAGES: Final = {".py": "python", ".json": "json", ".toml": "toml", ".cpp": "cpp", ".h": "cpp"}
_SHOWN_BYTES: Final = 60_000


@dataclass
class Page:
    """A page: its path in the site, with the suffix ``.md``, and its text.

    Attributes:
        path: with slashes, from the root of the site.
        text: Markdown.
        source: the file of the checkout; None for a generated page, whose links are relative to ``path``.
        is_found: whether the search looks into it.
        markdown: the text with the links of the site.
    """

    path: str
    text: str
    source: Path | None = None
    is_found: bool = True
    markdown: str = field(init=False, default="")

    @property
    def title(self) -> str:
        """The first heading, without marks."""
        found = re.search(r"^# (.+)$", self.text, re.MULTILINE)
        return re.sub(r"[`*]", "", found[1]) if found else self.path


class Site:
    """All pages by path.

    Args:
        playground: the path in the site of the built playground; None leaves the links to it out.
    """

    def __init__(self, playground: str | None = None) -> None:
        self.pages: dict[str, Page] = {}
        self._playground = playground

    def add(self, *pages: Page) -> None:
        """Add pages."""
        self.pages.update((page.path, page) for page in pages)

    def read_docs(self) -> None:
        """Add the pages of ``docs``, and every file that a page links to, and so on."""
        for path in sorted(_DOCS.rglob("*.md")):
            name = path.relative_to(_DOCS).as_posix()
            self.add(Page(name, path.read_text(encoding="utf-8"), path))
        waiting = list(self.pages.values())
        while waiting:
            page = waiting.pop()
            page.markdown, linked = self._with_links_of_the_site(page)
            waiting += linked

    def _with_links_of_the_site(self, page: Page) -> tuple[str, list[Page]]:
        new: list[Page] = []

        def link(found: re.Match[str]) -> str:
            if page.source is None:
                return found[0]
            target = (page.source.parent / found[1]).resolve()
            if not target.exists():
                if target.is_relative_to(_DOCS) and target.relative_to(_DOCS).as_posix() in self.pages:
                    return found[0]
                raise ValueError(f"{page.source}: no page {found[1]}")
            if target.is_file() and target.is_relative_to(_DOCS) and target.suffix != ".md":
                return found[0]  # it is copied
            path = _path_of(target)
            if path not in self.pages:
                self.add(made := _page_of(target, path))
                new.append(made)
            return os.path.relpath(path, Path(page.path).parent) + (found[2] or "")

        text = _outside_code(page.text, lambda text: _LINK.sub(link, text))
        return _PLAYGROUND.sub(lambda found: self._link_to_playground(page, found[1]), text), new

    def _link_to_playground(self, page: Page, text: str) -> str:
        if self._playground is None:
            return ""
        return f"[{text}]({os.path.relpath(self._playground, Path(page.path).parent)})\n\n"

    def stage(self, folder: Path) -> None:
        """Write all pages as Python-Markdown wants them, and the other files of ``docs`` as they are."""
        for path, page in self.pages.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            head = "" if page.is_found else "---\nsearch:\n  exclude: true\n---\n\n"
            foot = f'\n<p class="as-markdown"><a href="{Path(path).name}">This page as Markdown</a></p>\n'
            target.write_text(head + _for_python_markdown(page) + foot, encoding="utf-8")
        for file in _DOCS.rglob("*"):
            if file.is_file() and file.suffix != ".md" and not file.is_relative_to(_TOOLS):
                target = folder / file.relative_to(_DOCS)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.read_bytes())


def _path_of(file: Path) -> str:
    """The path in the site of a file of the checkout."""
    if file.is_relative_to(_DOCS):
        return file.relative_to(_DOCS).as_posix()
    name = file.relative_to(CHECKOUT).as_posix()
    if file.name == "README.md":  # Zensical makes the page of a folder of it
        name = f"{name.removesuffix('README.md')}index.md"
    return f"project/{name if name.endswith('.md') else f'{name}.md'}"


def _page_of(file: Path, path: str) -> Page:
    """The page for a file of the checkout: Markdown as it is, other text as code, the names in a folder."""
    name = file.relative_to(CHECKOUT).as_posix()
    if file.is_dir():
        names = sorted(each.name for each in file.iterdir() if not each.name.startswith((".", "__pycache__")))
        return Page(path, f"# {name}\n\n" + "\n".join(f"- `{each}`" for each in names) + "\n", is_found=False)
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return Page(path, text, file, is_found=False)
    if len(text) > _SHOWN_BYTES:
        text = text[:_SHOWN_BYTES].rpartition("\n")[0] + "\n...\n"
    return Page(path, f"# {name}\n\n````{_LANGUAGES.get(file.suffix, 'text')}\n{text}````\n", is_found=False)


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change what is neither in a fenced block nor in a code span."""
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    changed = change(_CODE.sub(keep, _FENCE.sub(keep, text)))
    while "\0" in changed:
        changed = re.sub("\0(\\d+)\0", lambda found: kept[int(found[1])], changed)
    return changed


def _for_python_markdown(page: Page) -> str:
    text = page.markdown.replace("```python\n>>> ", "```pycon\n>>> ")  # prompts are not copied
    text = _TABS.sub(lambda found: _tabs(found[1]), text)
    if page.source is not None:
        folder = page.source.parent
        text = _PICTURE.sub(lambda found: _picture(folder / found[2], found[1]), text)
    text = _outside_code(text, lambda prose: _ITEM.sub(r"\1\n\n\2", prose))
    return "\n".join(_table_row(line) if line.lstrip().startswith("|") else line for line in text.split("\n"))


def _picture(file: Path, described: str) -> str:
    """A drawing within the page, so that it has the colours of the theme."""
    drawing = file.read_text(encoding="utf-8").replace("\n\n", "\n").strip()
    name = html.escape(re.sub(r"\s+", " ", described), quote=True)
    drawing = drawing.replace("<svg ", f'<svg aria-label="{name}" ', 1)
    return f'<figure class="picture">{drawing}</figure>'


def _table_row(line: str) -> str:
    """A bar within code is escaped in GitHub's tables, and not in those of Python-Markdown."""
    return _CODE.sub(lambda found: found[0].replace("\\|", "|"), line)


def _tabs(text: str) -> str:
    """Parts that begin with a bold line of their own, as tabs."""
    parts = _TAB.split(text)[1:]
    shown = []
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        body = "\n".join(f"    {line}" if line else "" for line in part.strip("\n").split("\n"))
        shown.append(f'=== "{name}"\n\n{body}\n')
    return "\n".join(shown)
