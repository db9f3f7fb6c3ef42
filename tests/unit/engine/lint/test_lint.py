"""Each lint finds its target, at its place, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from schema_as_written import as_written as json_schema

from structgen.engine.lint import Finding, lint
from structgen.frontends.lark import lark
from structgen.frontends.regex import regex
from structgen.grammar.nodes import (
    Budget,
    Capture,
    Choice,
    Grammar,
    Reference,
    Repeat,
    Rules,
    choice,
    literal,
    sequence,
)
from structgen.testing import ReferenceMatcher

LIBRARY = Path(__file__).parents[4] / "grammars"


def _found(grammar: Grammar, name: str) -> list[Finding]:
    return [finding for finding in lint(grammar) if finding.lint == name]


def test_rules_that_are_never_used() -> None:
    """Rules that only each other use count as unused; those that a template or a terminal's rule uses do not."""
    grammar = lark('start: pair{a}\npair{x}: x "," x\na: "a"\nlost: "l" gone\ngone: lost | "g"\nT: "t"')
    found = _found(grammar, "unreachable rule")
    assert [(finding.where, finding.problem.split("'")[1]) for finding in found] == [("4:1", "lost"), ("5:1", "gone")]
    assert all(finding.is_warning for finding in found)
    inner = Rules({"a": literal("x"), "b": literal("y")}, Reference("a"))
    assert [finding.problem.split("'")[1] for finding in _found(inner, "unreachable rule")] == ["b"]


def test_rules_that_never_end() -> None:
    """A rule without strings is reported where it is defined."""
    (finding,) = _found(lark('start: "a" | loop\nloop: "x" loop'), "empty rule")
    assert finding.where == "2:1"
    assert "'loop'" in finding.problem
    assert finding.is_warning


def test_parts_that_can_never_match() -> None:
    """An empty intersection or choice is reported; a nonempty one is not."""
    never = regex("[a-c]+") & regex("[d-f]+")
    grammar = Rules(
        {"s": choice("x", never), "t": choice(regex("[a-c]+") & regex("[c-f]+"))},
        sequence(Reference("s"), Reference("t")),
    )
    (finding,) = _found(grammar, "empty part")
    assert "rule 's'" in finding.problem
    assert "[a-c]+ & [d-f]+" in finding.problem
    (nothing,) = _found(choice("x", sequence("y", Choice(()))), "empty part")
    assert "the grammar" in nothing.problem


def test_terminals_that_match_the_empty_text() -> None:
    """They give a warning at their place."""
    (finding,) = _found(lark("start: A B\nA: /x*/\nB: /x+/"), "empty terminal match")
    assert (finding.where, finding.is_warning) == ("2:1", True)


def test_terminals_that_share_texts() -> None:
    """Keywords and names, and other overlapping terminals, are reported with a common example."""
    grammar = lark('start: "while" NAME | HEX "," INT\nNAME: /[g-z][a-z]*/\nHEX: /[0-9a-f]+/\nINT: /[1-9][0-9]*/')
    found = {finding.problem.split("'")[1]: finding.problem for finding in _found(grammar, "colliding terminals")}
    assert set(found) == {"NAME", "HEX"}
    assert found["NAME"].endswith("shares strings with 'while', for instance 'while'")
    example = found["HEX"].rsplit("'", 2)[1]
    for pattern in ("[0-9a-f]+", "[1-9][0-9]*"):
        reader = ReferenceMatcher(regex(pattern))
        assert reader.accept_bytes(example.encode()) == len(example)
        assert reader.is_accepting


def test_terminals_at_one_place() -> None:
    """A word that is also a name, where both may stand, gives a warning with the rule; elsewhere it is information."""
    rules = 'start: stmt\nstmt: "if" NAME "then" | NAME "=" INT\nNAME: /[a-z]+/\nINT: /[0-9]+/\n%ignore " "'
    (finding,) = _found(lark(rules), "terminals at one place")
    assert (finding.where, finding.is_warning) == ("3:1", True)
    assert "is allowed where the word 'if' is, and 'if' matches both, in rule 'start' (1:1)" in finding.problem
    assert '& ~"if"' in finding.remedy
    assert not _found(lark(rules), "colliding terminals")  # it is reported already
    apart = 'start: "if" NAME\nNAME: /[a-z]+/'
    assert not _found(lark(apart), "terminals at one place")
    assert [finding.is_warning for finding in _found(lark(apart), "colliding terminals")] == [False]
    assert not _found(lark(rules, lexer="contextual"), "terminals at one place")


def test_words_that_run_together_with_what_follows() -> None:
    """A name that is not a word may still be read as a word followed by a name."""
    rules = 'start: "if" NAME | NAME "=" NAME\nNAME: /[a-z]+/ & ~"if"\n%ignore " "'
    (finding,) = _found(lark(rules), "terminals at one place")
    assert "'ifa' matches it as well as the word 'if' followed by terminal 'NAME'" in finding.problem
    assert finding.is_warning
    assert not _found(lark(rules.replace('"if"', "/if\\b/", 1)), "terminals at one place")
    two = "start: INT | FLOAT\nINT: /[0-9]+/\nFLOAT: /[0-9]+(\\.[0-9]+)?/"
    assert [finding.is_warning for finding in _found(lark(two), "terminals at one place")] == [False]


def test_captures_that_report_nothing() -> None:
    """A capture around the empty text, or one name for two parts, is reported."""
    grammar = choice(Capture("a", literal("x")), sequence(Capture("a", literal("y")), Capture("b", literal(""))))
    (empty,) = _found(grammar, "empty capture")
    assert "'b'" in empty.problem
    (several,) = _found(grammar, "capture of several parts")
    assert "'a' is the name of 2 different parts" in several.problem
    same = Capture("a", literal("x"))
    assert not _found(sequence(same, ",", same), "capture of several parts")


def test_a_budget_is_a_bound() -> None:
    """A repetition inside a budget is not reported."""
    grammar = Rules({"a": Repeat(literal("x"), 0, None)}, Budget(Reference("a"), tokens=5))
    assert not _found(grammar, "no bound on the length")
    assert _found(Rules(dict(grammar.rules), Reference("a")), "no bound on the length")


@pytest.mark.exhaustive
def test_what_is_left_out_of_a_large_grammar() -> None:
    """The lints that take long are named, and the many findings of one lint are cut."""
    count = 25_000
    rules: dict[str, Grammar] = {f"r{i}": choice("a", sequence("x", Reference(f"r{i + 2}"))) for i in range(count)}
    found = lint(Rules(rules | {f"r{count + i}": literal("y") for i in range(2)}, Reference("r0")))
    assert any(finding.lint == "left out" and "ambiguity" in finding.problem for finding in found)
    unused = [finding for finding in found if finding.lint == "unreachable rule"]
    assert len(unused) == 51
    assert f"there are {count // 2 + 1 - 50:,} more" in unused[-1].problem


AMBIGUOUS = {
    "sum": ('start: e\ne: e "+" e | "x"', "x+x+x"),
    "else": ('start: s\ns: "i" s | "i" s "e" s | "x"', "iixex"),
    "same": ("start: a | b\na: /x+y/\nb: /xy+/", "xy"),
}
CLEAR = {
    "sum": 'start: e\ne: e "+" t | t\nt: "x" | "(" e ")"',
    "palindrome": 'start: "a" start "a" | "b" start "b" | "c"',
    "empty": 'start: a b\na: "x"?\nb: "y"* ',
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_a_shortest_ambiguous_text(name: str) -> None:
    """The text is one of the shortest that have two derivations."""
    text, shortest = AMBIGUOUS[name]
    (finding,) = _found(lark(text), "ambiguity")
    assert f"{shortest!r}, with 2 parses" in finding.problem
    assert not finding.is_warning


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CLEAR)
def test_no_ambiguity_up_to_a_length(name: str) -> None:
    """Where no text has two derivations, the length up to which that is known is reported."""
    (finding,) = _found(lark(CLEAR[name]), "ambiguity")
    assert finding.problem.startswith("no string of up to ")


def test_white_space_without_bound() -> None:
    """White space without a bound is reported, ignored or written out; bounded white space is not."""
    (finding,) = _found(lark('start: a\na: "x" /[ \\t]+/ "y"'), "unbounded white space")
    assert "'a'" in finding.problem
    assert _found(lark('start: "x"\n%ignore /\\s+/'), "unbounded white space")
    assert not _found(lark('start: "x" / {1,4}/ "y" /[ a]*/'), "unbounded white space")


def test_what_has_no_bound() -> None:
    """The rules that recur and those that repeat are named."""
    (finding,) = _found(lark('start: list W\nlist: "(" list? ")"\nW: /x+/'), "no bound on the length")
    assert "recursion of 'list' and repetition in 'W'" in finding.problem
    assert not _found(lark('start: a{"x"}\na{y}: y~3'), "no bound on the length")


def test_left_recursion_is_told() -> None:
    """Direct and indirect left recursion and that after an empty part are reported."""
    (finding,) = _found(lark('start: a\na: b "x" | "y"\nb: c? a\nc: "z"'), "left recursion")
    assert "'a', 'b';" in finding.problem
    assert not _found(lark('start: "x" start | "y"'), "left recursion")


def test_schemas_are_judged_by_their_keywords() -> None:
    """Rules made from a schema are not reported, and a library grammar has no warning."""
    (finding,) = lint(json_schema({"type": "object", "requierd": ["a"]}))
    assert (finding.lint, finding.where, finding.remedy) == ("unknown keyword", "#/requierd", "is 'required' meant?")
    assert lint(json_schema({"type": "object"})) == []


@pytest.mark.parametrize("name", ["json", "arithmetic", "csv"])
def test_good_grammars_have_no_warnings(name: str) -> None:
    """All findings in them are information."""
    from structgen.frontends.lark import load

    assert not any(finding.is_warning for finding in lint(load(LIBRARY / name / "grammar.lark")))


def test_large_grammars_take_linear_time() -> None:
    """Many rules and terminals are linted within bounds that are counted."""
    count = 3_000
    rules: dict[str, Grammar] = {
        f"r{i}": choice("a", sequence("x", Reference(f"r{(i * 7 + 1) % count}"))) for i in range(count)
    }
    found = lint(Rules(rules, Reference("r0")))
    assert any(finding.lint == "no bound on the length" for finding in found)


TOOLS = """start: ( f_foo | f_bar )* f_end
f_end: TEXT
TEXT: /(.|\\n)*/
hd%s: TEXT "<function"
f_foo: hd "=foo>" /[0-9]+/ "</function>"
f_bar: hd "=bar>" %%json {"type": "boolean"} "</function>"
"""


def test_parts_that_free_text_hides() -> None:
    """A call of a tool constrains nothing beside free text that has every call of it; a lazy rule makes it count."""
    (finding,) = _found(lark(TOOLS % ""), "hidden part")
    assert finding.where == "1:1"
    assert "rule 'start' constrains nothing" in finding.problem
    assert "f_foo | f_bar" in finding.problem
    assert finding.is_warning
    assert not _found(lark(TOOLS % "[lazy]"), "hidden part")
    (within,) = _found(lark('start: "<" (a | b) ">"\na: "x" "y"\nb: /[^>]*/'), "hidden part")
    assert within.problem.endswith("every text of it: a")
    assert not _found(lark('start: "<" (a | b) ">"\na: "x" ">"\nb: /[^>]*/'), "hidden part")
    assert not _found(lark('start: "x" | a\na: "x" "y" | /[a-z]*/'), "hidden part")  # no free text
