"""Words that the project has replaced by the field's do not come back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

CHECKOUT: Final = Path(__file__).resolve().parents[2]
WORDS: Final = [
    line.split(":")[0]
    for line in (CHECKOUT / "tests/record/banned_words.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
BANNED: Final = re.compile(rf"(?<![\w-])(?:{'|'.join(WORDS)})(?![\w-]|:[\w{{])", re.IGNORECASE)
FOLDERS: Final = ("structgen", "kernels", "docs", "tests", "benchmarks", "examples", "grammars", "training")
SUFFIXES: Final = (".py", ".pyi", ".cpp", ".h", ".md")
ALLOWED: Final = {
    # laws of algebra
    *("structgen/testing", "tests/unit/testing", "tests/property", "docs/checking.md", "CONTRIBUTING.md"),
    # measurements of earlier versions, and the history
    *("benchmarks/record", "CHANGELOG.md"),
    # texts that are data: prompts, documents, lists of words
    *("training", "tests/fixtures", "tests/support/checkers"),
    "tests/unit/test_words.py",
    # old names of public members, kept for one release
    *("structgen/methods/samplers/ngram_lookahead.py", "structgen/decode/speculative/drafters/retrieval.py"),
    "structgen/shapes.pyi",
}


def _files() -> list[Path]:
    inside = (path for folder in FOLDERS for path in (CHECKOUT / folder).rglob("*") if path.suffix in SUFFIXES)
    return sorted([*CHECKOUT.glob("*.md"), *inside])


def _is_allowed(name: str) -> bool:
    return any(name == each or name.startswith(f"{each}/") for each in ALLOWED)


@pytest.mark.parametrize("folder", [*FOLDERS, "."])
def test_no_banned_word_is_used(folder: str) -> None:
    """Each use is reported with its file and line; ``tests/record/banned_words.txt`` says what to write."""
    found = []
    for path in _files():
        name = path.relative_to(CHECKOUT).as_posix()
        if (name.split("/")[0] if "/" in name else ".") != folder or _is_allowed(name):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            found += [f"{name}:{number}: {match.group()}" for match in BANNED.finditer(line)]
    assert not found, "\n".join(found[:40])


def test_the_project_has_few_words_of_its_own() -> None:
    """A newcomer learns fewer than sixty words; all others of the glossary have their usual meaning."""
    page = (CHECKOUT / "docs/glossary.md").read_text(encoding="utf-8")
    own, usual = page.split("\n## Words of the field\n")
    counts = [len(re.findall(r"^\| (?!word \||---)", part, re.MULTILINE)) for part in (own, usual)]
    assert 30 < counts[0] < 60
    assert counts[1] > 40
