"""Docstrings in Google's form as Markdown: sections become lists, roles and double backquotes code, names links."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Final

__all__ = ["summary", "to_markdown"]

_SECTION: Final = re.compile(
    r"^(Args|Attributes|Complexity|Example|Examples|Invariant|Note|Raises|Returns|Source|Sources|Yields):[ \t]*(.*)$"
)
_TITLES: Final = {"Args": "Arguments", "Raises": "Errors"}
_LISTS: Final = {"Args", "Attributes", "Raises"}
_ITEM: Final = re.compile(r"^(\*{0,2}\w[\w.]*(?:(?: \(.*?\))|(?:, \*{0,2}\w[\w.]*))*|\*, .+?): *(.*)$")
_ROLE: Final = re.compile(r":\w+:`~?([^`]+)`")


def summary(doc: str) -> str:
    """The first paragraph."""
    return " ".join(inspect.cleandoc(doc).split("\n\n")[0].split())


def to_markdown(doc: str, links: Mapping[str, str]) -> str:
    """Write a docstring as Markdown.

    Args:
        doc: the docstring.
        links: the address of each name that is explained somewhere; code that is such a name links to it.
    """
    parts: list[str] = []
    section, held = "", list[str]()
    for line in [*inspect.cleandoc(doc).split("\n"), "\0"]:
        found = _SECTION.match(line)
        if found or line == "\0" or (section and line and not line.startswith(" ")):
            parts.append(_section(section, held))
            section, held = (found[1], [found[2]] if found[2] else []) if found else ("", [line])
        else:
            held.append(line)
    return _linked("\n\n".join(part for part in parts if part), links)


def _section(title: str, lines: list[str]) -> str:
    if not title:
        return _prose(lines)
    body = inspect.cleandoc("\n" + "\n".join(lines)).split("\n")
    text = _items(body) if title in _LISTS else _prose(body)
    return f"**{_TITLES.get(title, title)}**\n\n{text}" if text else ""


def _items(lines: list[str]) -> str:
    """A list of what an indented section explains: each item begins at the left edge."""
    items: list[str] = []
    for line in lines:
        found = _ITEM.match(line)
        if found:
            names = ", ".join(f"`{name.strip()}`" for name in found[1].split(","))
            items.append(f"- {names}: {_inline(found[2])}")
        elif items:
            items[-1] += f"\n  {_inline(line.strip())}"
        elif line.strip():
            items.append(_inline(line.strip()))
    return "\n".join(items)


def _prose(lines: list[str]) -> str:
    """Paragraphs; lines after ``::`` and sessions of the interpreter are code."""
    blocks: list[str] = []
    code: list[str] = []
    language = ""
    for line in [*lines, "\0"]:
        if code and (
            line == "\0"
            or (line.strip() == "" and language == "python")
            or (line.strip() and not line.startswith("    ") and language == "text")
        ):
            blocks.append(f"```{language}\n" + inspect.cleandoc("\n" + "\n".join(code)).rstrip() + "\n```\n")
            code, language = [], ""
        if line == "\0":
            break
        if not code and line.startswith(">>> "):
            code, language = [line], "python"
        elif code or language:
            code.append(line.replace("``", ""))
        elif line.rstrip().endswith("::"):
            blocks.append(_inline(line.rstrip()[:-1] if line.strip() != "::" else ""))
            code, language = [""], "text"
        else:
            blocks.append(_inline(line))
    return "\n".join(blocks).strip()


def _inline(text: str) -> str:
    return _ROLE.sub(r"`\1`", text).replace("``", "`").replace(".  ", ". ")


def _linked(text: str, links: Mapping[str, str]) -> str:
    def link(found: re.Match[str]) -> str:
        name = re.sub(r"^(sg|structgen)\.|\(\)$", "", found[1])
        is_ours = name[:1].isupper() or name != found[1]  # `text` is an argument more often than our function
        return f"[`{found[1]}`]({links[name]})" if is_ours and name in links else found[0]

    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else re.sub(r"`([\w.()]+)`", link, part) for part in parts)
