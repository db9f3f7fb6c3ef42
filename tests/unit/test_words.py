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
    *("structgen/testing", "tests/unit/testing", "tests/property", "docs/guides/checking.md", "CONTRIBUTING.md"),
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


def _glossary() -> list[tuple[str, str]]:
    """The word and the last column of each row."""
    page = (CHECKOUT / "docs/reference/glossary.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| .+ \|(.*) \|$", page, re.MULTILINE)
    return [(word, where) for word, where in rows if word not in ("word", "---")]


def test_the_project_has_few_words_of_its_own() -> None:
    """A newcomer who knows the field learns fewer than sixty words, each of them once."""
    words = [word for word, _ in _glossary()]
    assert 30 < len(words) < 60
    assert len(set(words)) == len(words)


def test_the_glossary_points_into_the_code() -> None:
    """Each name in the last column is a file or folder, or is defined in the sources."""
    sources = [path for folder in ("structgen", "kernels") for path in (CHECKOUT / folder).rglob("*.py")]
    words = set(re.findall(r"\w+", "\n".join(path.read_text(encoding="utf-8") for path in sources)))
    named = [(word, name) for word, where in _glossary() for name in re.findall(r"`([^`]+)`", where)]
    assert len(named) > 25
    missing = [
        (word, name)
        for word, name in named
        if not any((CHECKOUT / root / name).exists() for root in (".", "structgen"))
        and not set(re.findall(r"\w+", name)) <= words
    ]
    assert missing == []
