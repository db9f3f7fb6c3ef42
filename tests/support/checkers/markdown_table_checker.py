"""Tables of Markdown: the package ``markdown-it-py``, and the number of bars in each line."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from checked_language import Language
from markdown_it import MarkdownIt

PARSER = MarkdownIt("commonmark").enable("table")


def problem(text: str) -> str | None:
    tokens = [token for token in PARSER.parse(text) if token.level == 0]
    if [token.type for token in tokens] != ["table_open", "table_close"]:
        return "it is not one table"
    lines = text.removesuffix("\n").split("\n")
    if tokens[0].map != [0, len(lines)]:
        return "the table ends before the text"
    bars = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
    headings = sum(token.type == "th_open" for token in PARSER.parse(text))
    return None if bars == {headings + 1} and headings <= 8 else "rows of different lengths"


def documents(rng: random.Random) -> Iterator[str]:
    words = ["a", "long heading", "`x \\| y`", "**b**", "", "[l](u)", "1.5", "漢字", "a \\| b", "<br>", "- x", "\\\\a"]
    while True:
        width = rng.randint(1, 8)
        rows = [[rng.choice(words[:4] if i == 0 else words) for _ in range(width)] for i in range(rng.randint(1, 7))]
        sizes = [max(3, *(len(row[column]) for row in rows)) for column in range(width)]
        lines = ["| " + " | ".join(map(str.ljust, row, sizes)) + " |" for row in rows]
        rules = [f"{rng.choice(('', ':'))}{'-' * size}{rng.choice(('', ':'))}" for size in sizes]
        lines.insert(1, "|" + "|".join(rules) + "|")
        yield "\n".join(lines) + rng.choice(("", "\n"))


LANGUAGE = Language(problem, documents)
