"""The ecma and rust dialects against recorded answers of V8 and the Rust crate, from committed tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from regex_reference import Universe

from structgen import errors
from structgen.errors import GrammarError
from structgen.frontends.regex import DialectName, regex, search_language
from structgen.grammar.nodes import Grammar


def load(name: str) -> dict[str, Any]:
    table: dict[str, Any] = json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    return table


ECMA = load("test_regex_ecma_table.json")
RUST = load("test_regex_rust_table.json")


class Judge:
    """Compares the languages of a dialect with a table."""

    def __init__(self, dialect: DialectName, table: dict[str, Any]) -> None:
        self.dialect: DialectName = dialect
        self.texts: list[str] = table["texts"]
        self.universe = Universe(self.texts)

    def difference(self, case: dict[str, Any]) -> str:
        """How a case that the dialect accepts differs from the table; ``""`` if it does not."""
        pattern, flags = case["pattern"], case.get("flags", "")
        skipped = "m" in flags or case["mode"] == "annexB"
        terms = {
            "full": regex(pattern, dialect=self.dialect, flags=flags),
            "search": search_language(pattern, dialect=self.dialect, flags=flags),
        }
        for name, term in terms.items():
            wanted = {text for index, text in enumerate(self.texts) if int(case[name], 16) >> index & 1}
            found = self.found(term, skip_astral=skipped)
            if found != wanted:
                return f"{name} {pattern!r}: too many {sorted(found - wanted)}, missing {sorted(wanted - found)}"
        return ""

    def found(self, term: Grammar, *, skip_astral: bool) -> set[str]:
        members = self.universe.members(term)
        return {
            text for text in self.texts if text in members and not (skip_astral and any(c > "\uffff" for c in text))
        }


@pytest.mark.exhaustive
@pytest.mark.parametrize(("dialect", "table"), [("ecma", ECMA), ("rust", RUST)], ids=["ecma", "rust"])
def test_languages(dialect: DialectName, table: dict[str, Any]) -> None:
    """Each pattern that the dialect accepts matches the texts that the other implementation matches."""
    judge = Judge(dialect, table)
    cases = [case for case in table["cases"] if case["mode"] != "error" and "refused" not in case]
    assert len(cases) > 350
    assert [found for case in cases if (found := judge.difference(case))] == []


@pytest.mark.parametrize(("dialect", "table"), [("ecma", ECMA), ("rust", RUST)], ids=["ecma", "rust"])
def test_what_is_declined(dialect: DialectName, table: dict[str, Any]) -> None:
    """What the other implementation finds malformed is an error; everything else that is refused is listed."""
    wrong = []
    for case in table["cases"]:
        kind = getattr(errors, case["refused"]) if "refused" in case else GrammarError
        if "refused" in case or (case["mode"] == "error" and not case.get("newer")):
            try:
                regex(case["pattern"], dialect=dialect, flags=case.get("flags", ""))
            except kind:
                continue
            except GrammarError as error:
                wrong.append((case["pattern"], type(error)))
            else:
                wrong.append((case["pattern"], "accepted"))
    assert wrong == []


def test_strict_ecma_patterns_are_hardly_declined() -> None:
    """Of the patterns that are valid with the flag u, only irregular or unsupported ones are refused."""
    declined = {case["pattern"] for case in ECMA["cases"] if case["mode"] == "u" and "refused" in case}
    assert declined == {
        r"(a)\1",
        r"(?<n>a)\k<n>",
    }


def test_newer_rust_syntax() -> None:
    """Syntax that newer versions of the crate added has the right meaning."""
    universe = Universe(['/"_ab'])
    assert universe.members(regex(r"\/\"\_", dialect="rust")) == {'/"_'}
    assert universe.members(regex("(?<n>a)b", dialect="rust")) == {"ab"}
    assert universe.members(regex("[a&&b]|b", dialect="rust")) == {"b"}
