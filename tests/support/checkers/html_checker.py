"""HTML: the errors and the tree of ``html5lib``, and the tags as Python's ``html.parser`` finds them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from html.parser import HTMLParser

import html5lib
from checked_language import Language
from installed_documents import files

VOID = {"br", "hr", "img", "input", "link", "meta", "wbr"}
IMPLIED = {"tbody", "html", "head", "body", "colgroup"}


class Tags(HTMLParser):
    """Collects the elements that tags show, each with its depth."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[int, str]] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in IMPLIED:
            self.found.append((sum(name not in IMPLIED for name in self.open), tag))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            raise ValueError(f"</{tag}> closes nothing")


def problem(text: str) -> str | None:
    parser = html5lib.HTMLParser(namespaceHTMLElements=False)
    tree = parser.parse(text) if re.match(r"\s*<!doctype", text, re.IGNORECASE) else parser.parseFragment(text)
    for _, code, _ in parser.errors:
        if code != "duplicate-attribute":
            return str(code)
    tags = Tags()
    try:
        tags.feed(text)
        tags.close()
    except ValueError as error:
        return str(error)
    if tags.open:
        return f"<{tags.open[-1]}> is not closed"
    found: list[tuple[int, str]] = []
    stack = [(0, tree)]
    while stack:
        depth, element = stack.pop()
        is_shown = isinstance(element.tag, str) and element.tag not in {*IMPLIED, "DOCUMENT_FRAGMENT"}
        if is_shown and not element.tag.startswith("<!"):
            found.append((depth, element.tag))
        stack += [(depth + is_shown, child) for child in reversed(list(element))]
    return None if found == tags.found else "a browser moves or closes elements"


ELEMENT = re.compile(r"<(p|ul|ol|table|div|h[1-6]|dl|pre|blockquote)\b[^<>]*>(?:(?!<\1\b).)*?</\1>", re.DOTALL)
LEFT_OUT = re.compile(
    r"<(?!/?(?:span|em|strong|b|i|u|s|small|code|kbd|samp|var|sub|sup|mark|abbr|cite|q|dfn|time|label|br|img|input|wbr|a|button"
    r"|div|section|article|aside|header|footer|nav|main|blockquote|address|p|pre|h[1-6]|ul|ol|li|dl|dt|dd|figure|figcaption"
    r"|details|summary|table|caption|thead|tbody|tfoot|tr|td|th|hr)(?:>|\s+(?:[A-Za-z][A-Za-z0-9:_-]*"
    r"(?:=(?:\"[^\"]*\"|'[^']*'|[A-Za-z0-9_.:;#%,+-]+))?\s*)*/?>))"
    r"|&(?!(?:amp|lt|gt|quot|nbsp|#(?:39|34|160|8212));)|\r|\f"
)


def has_blocks_in_links(text: str) -> bool:
    return (
        re.search(
            r"<(a|button|span|em|b|i|strong|code|label)\b[^>]*>(?:(?!</\1>).)*<(p|div|ul|ol|table|h[1-6]|pre|a)\b",
            text,
            re.DOTALL,
        )
        is not None
    )


def documents(rng: random.Random) -> Iterator[str]:
    """Elements of installed files, then generated documents."""
    for text in files("*.html", max_bytes=40_000, count=8):
        for match in list(ELEMENT.finditer(text))[:4]:
            element = match[0]
            if not LEFT_OUT.search(element) and not has_blocks_in_links(element) and problem(element) is None:
                yield element
    while True:
        body = "".join(block(rng, 3) for _ in range(rng.randint(0, 4)))
        page = f"<head><meta charset=\"utf-8\"><title>A &amp; B</title></head>\n<body class='x'>{body}</body>"
        yield rng.choice((body, f'<!DOCTYPE html>\n<html lang="en">{page}</html>\n'))


def block(rng: random.Random, depth: int) -> str:
    words = " ".join(
        rng.choices(["word", "<b>bold</b>", '<a href="/x?a=1&amp;b">link</a>', "&lt;", "<br/>", "é", "<em>x</em>"], k=4)
    )
    inner = "\n".join(block(rng, depth - 1) for _ in range(rng.randint(1, 3))) if depth else words
    shapes = [
        f"<p>{words}</p>",
        f'<div id="d{depth}" hidden>{inner}</div>',
        f"<ul>\n<li>{inner}</li><li>{words}</li></ul>",
        f"<table><thead><tr><th scope=col>{words}</th></tr></thead><tbody><tr><td>{inner}</td></tr></tbody></table>",
        f"<section><h2>{words}</h2>{inner}</section>",
        f"<pre><code>{words}</code></pre><!-- end -->",
        f"<dl><dt>{words}</dt><dd>{inner}</dd></dl>",
    ]
    return rng.choice(shapes)


LANGUAGE = Language(problem, documents)
