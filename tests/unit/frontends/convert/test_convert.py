"""Grammars in other notations: the same language, and every loss named."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from machine_load import at_most

from structgen.errors import GrammarError, UnsatisfiableGrammar, UnsupportedFeature
from structgen.frontends.bnf import ebnf, gbnf
from structgen.frontends.convert import DIALECTS, Dialect, Treatment, write
from structgen.frontends.convert.automaton import NotRegular, right_linear
from structgen.frontends.json_schema import json_schema
from structgen.frontends.lark import lark
from structgen.frontends.regex import regex
from structgen.grammar import nodes as ir
from structgen.grammar.nodes import ANY_CHAR, EMPTY, EPSILON, Grammar, Reference, Rules, literal, repeat
from structgen.testing.reference import ReferenceMatcher
from structgen.testing.small_scope import BOOLEAN, ITSELF, REGULAR, language, recursive, small_terms

READERS: dict[Dialect, Callable[[str], Grammar]] = {"gbnf": gbnf, "ebnf": ebnf, "lark": lark, "llguidance": lark}
RULES = list(READERS)


def members(term: Grammar, alphabet: bytes = b"ab", longest: int = 4) -> set[bytes]:
    return language(term, longest, alphabet)


def assert_same(term: Grammar, alphabet: bytes = b"ab", longest: int = 4) -> None:
    """Check that each text, read back, has the language of the term."""
    expected = members(term, alphabet, longest)
    for dialect, read in READERS.items():
        try:
            text = write(term, dialect).text
        except UnsatisfiableGrammar:
            assert not expected, (dialect, str(term))
            continue
        assert members(read(text), alphabet, longest) == expected, (dialect, str(term), text)


def test_all_small_terms() -> None:
    for term in small_terms(3, [literal("a"), literal("ab"), ir.ByteClass([(97, 98)]), EMPTY], REGULAR + BOOLEAN):
        assert_same(term)


def test_all_small_recursive_rules() -> None:
    for term in small_terms(4, [literal("a"), ITSELF], REGULAR[:3]):
        assert_same(recursive(term))


def any_term(dice: random.Random, depth: int, names: list[str]) -> Grammar:
    """A random term of all operators that a dialect may lack, over the letters a and b and the rules of ``names``."""
    kind = dice.randrange(10 if depth else 3)

    def below() -> Grammar:
        return any_term(dice, depth - 1, names)

    def regular() -> Grammar:
        return any_term(dice, min(depth - 1, 1), [])

    match kind:
        case 0:
            return literal(dice.choice(["a", "b", "ab", "ba", ""]))
        case 1:
            return ir.CharClass([(97, 97 + dice.randrange(2))])
        case 2:
            return Reference(dice.choice(names)) if names else ANY_CHAR
        case 3 | 4:
            return ir.Sequence(below() for _ in range(dice.randint(0, 3)))
        case 5:
            return ir.Choice(below() for _ in range(dice.randint(1, 3)))
        case 6:
            least = dice.randrange(3)
            return repeat(below(), least, dice.choice([None, least, least + 1, least + 2]))
        case 7:
            return ir.Intersection((regular(), regular()))
        case 8:
            return ir.Complement(regular())
        case _:
            return ir.Permutation([below()], [below()], EMPTY, literal(dice.choice(["", "b"])))


def random_grammars(count: int) -> Iterator[Grammar]:
    for seed in range(count):
        dice = random.Random(seed)
        names = ["x", "Y"]
        yield Rules({name: any_term(dice, 2, names) for name in names}, any_term(dice, 3, names))


@pytest.mark.exhaustive
def test_random_grammars() -> None:
    """Three hundred grammars of two rules keep their language, with left recursion, empty rules and ambiguity."""
    for term in random_grammars(300):
        assert_same(term, longest=3)


@pytest.mark.nightly
def test_more_random_grammars() -> None:
    for term in random_grammars(4_000):
        assert_same(term, longest=4)


def test_round_trips_of_texts() -> None:
    """From text to grammar to text to grammar the language stays the same."""
    for term in random_grammars(50):
        for dialect, read in READERS.items():
            try:
                first = write(term, dialect).text
            except UnsatisfiableGrammar:
                continue
            second = write(read(first), dialect).text
            assert members(read(second), longest=3) == members(read(first), longest=3)


@pytest.mark.parametrize("dialect", RULES)
def test_characters_survive(dialect: Dialect) -> None:
    for text in ['"\\/[]^-', "\n\r\t\x01\x1f\x7f", "a\x0b1", "é1ÿ😀a\u2028", "{2}*+?|()#.,<>!&~`'$%"]:
        grammar = READERS[dialect](write(literal(text), dialect).text)
        assert members(grammar, bytes(set(text.encode())), 0) == set()
        assert language_of_literal(grammar) == text
    ranges = [(1, 9), (0x2B, 0x2F), (0x5B, 0x60), (0xE9, 0x2029), (0x1F600, 0x10FFFF)]
    for kept in (ir.CharClass(ranges), ir.CharClass([(0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF)]), ANY_CHAR):
        found = READERS[dialect](write(repeat(kept, 2, 2), dialect).text)
        classes = [node for node in ir.postorder(found) if isinstance(node, ir.CharClass)]
        union = [pair for node in classes for pair in node.ranges]
        union += [(code, code) for code in map(ord, "".join(literals_of(found)))]
        assert ir.CharClass(union) == kept


def literals_of(grammar: Grammar) -> Iterator[str]:
    for node in ir.postorder(grammar):
        if isinstance(node, ir.Literal):
            yield node.data.decode()


def language_of_literal(grammar: Grammar) -> str:
    """The one text of a grammar of literals in sequence."""
    order: dict[int, str] = {}
    rules = {name: term for node in ir.postorder(grammar) if isinstance(node, Rules) for name, term in node.rules}
    for node in [*(inner for term in rules.values() for inner in ir.postorder(term)), *ir.postorder(grammar)]:
        if isinstance(node, ir.Literal):
            order[id(node)] = node.data.decode()
        elif not isinstance(node, Reference):
            order[id(node)] = "".join(order.get(id(child), "") for child in node.children)
    return next(order[id(term)] for name, term in rules.items() if name in ("root", "start"))


def is_member(grammar: Grammar, text: str) -> bool:
    matcher = ReferenceMatcher(grammar)
    data = text.encode()
    return matcher.accept_bytes(data) == len(data) and matcher.is_accepting


VALUES = ["a", '"', "\\", "/", "\n", "\b", "\x1f", "é", "\uffff", "😀", "\U0010ffff"]


@pytest.mark.parametrize("value", VALUES)
def test_json_strings_are_spelled_out(value: str) -> None:
    """The spellings are the texts that json reads as the value: raw characters, short escapes and escapes by code."""
    grammar = gbnf(write(ir.JsonString(literal(value)), "gbnf").text)
    shapes = [chr(code) for code in (*range(0x20), *map(ord, VALUES))]
    shapes += [f"\\{mark}" for mark in 'abfnrtuvx"/\\']
    units = [f"\\u{unit:04x}" for text in VALUES for unit in memoryview(text.encode("utf-16-le")).cast("H")]
    shapes += [*units, *(unit.upper().replace("U", "u") for unit in units), *map("".join, pairwise(units))]
    for shape in shapes:
        try:
            expected = json.loads(f'"{shape}"') == value
        except ValueError:
            expected = False
        assert is_member(grammar, f'"{shape}"') is expected, shape


def test_json_strings_of_many_characters() -> None:
    """Classes of characters beyond the first plane become surrogate pairs, from the first to the last."""
    grammar = lark(write(ir.JsonString(ir.CharClass([(0x10000, 0x10FFFF)])), "lark").text)
    for high in (0xD7FF, 0xD800, 0xDABC, 0xDBFF, 0xDC00):
        for low in (0xDBFF, 0xDC00, 0xDDEF, 0xDFFF, 0xE000):
            expected = 0xD800 <= high <= 0xDBFF and 0xDC00 <= low <= 0xDFFF
            assert is_member(grammar, f'"\\u{high:04x}\\u{low:04X}"') is expected, (high, low)


def test_json_strings_of_complements() -> None:
    """No spelling of an excluded text is accepted, raw or escaped."""
    term = ir.JsonString(ir.Intersection((ir.CharClass([(97, 98)]), ir.Complement(literal("a")))))
    grammar = gbnf(write(term, "gbnf").text)
    texts = ['"b"', '"\\u0062"', '"a"', '"\\u0061"', '""', '"bb"']
    assert [text for text in texts if is_member(grammar, text)] == texts[:2]


def losses(term: Grammar, dialect: Dialect, **options: bool) -> list[tuple[str, str, str]]:
    return [(loss.what, loss.where, loss.treatment.value) for loss in write(term, dialect, **options).losses]


def test_annotations_are_named() -> None:
    term = Rules({"year": ir.Capture("y", ir.Tempered(literal("a"), 0.5))}, ir.Sequence((Reference("year"), EPSILON)))
    assert losses(term, "gbnf") == [
        ("Tempered 0.5", "year", "dropped"),
        ("Capture 'y'", "year", "dropped"),
        ("name 'year'", "year", "renamed"),
    ]


def test_names_that_change_are_named() -> None:
    rules = {"NAME": literal("a"), "name": literal("b"), "a b": literal("c"), "root": literal("d")}
    body = ir.Sequence(map(Reference, rules))
    changed = [what for what, _, _ in losses(Rules(rules, body), "lark")]
    assert changed == ["name 'NAME'", "name 'name'", "name 'a b'"]
    assert [what for what, _, _ in losses(Rules(rules, body), "gbnf")] == ["name 'a b'", "name 'root'"]
    for dialect in RULES:
        text = write(Rules(rules, body), dialect).text
        assert members(READERS[dialect](text), b"abcd") == {b"abcd"}


RESTRICTIONS = [
    (ir.Distinct(repeat(literal("a"), 0, 2)), "Distinct"),
    (ir.Budget(repeat(literal("a"), 0, 2), tokens=3), "Budget"),
    (ir.Permutation([literal(letter) for letter in "abcdef"]), "Permutation"),
    (Rules({"s": literal("a") | "b" + Reference("s")}, Reference("s") & repeat(literal("a"))), "Intersection"),
    (regex("(a|b)*a(a|b){12}") & regex("(b|a)*b(a|b){12}"), "Intersection"),
]


@pytest.mark.parametrize(("term", "feature"), RESTRICTIONS)
@pytest.mark.parametrize("dialect", RULES)
def test_restrictions_are_refused_or_left_out_on_demand(dialect: Dialect, term: Grammar, feature: str) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        write(ir.Sequence((literal("x"), term)), dialect)
    assert caught.value.feature == feature
    assert "superset" in caught.value.remedy
    written = write(ir.Sequence((literal("x"), term)), dialect, superset=True)
    assert [loss.what for loss in written.losses if loss.treatment is Treatment.SUPERSET] == [feature]
    if feature in ("Budget", "Permutation"):
        assert members(READERS[dialect](written.text), b"xab") >= members(ir.Sequence((literal("x"), term)), b"xab")


@pytest.mark.parametrize("dialect", RULES)
def test_a_superset_holds_below_complements_too(dialect: Dialect) -> None:
    """A part left out below a complement would shrink the language, so the complement is left out as well."""
    budget = ir.Budget(repeat(literal("a"), 0, None), tokens=1)
    for term in (ir.Complement(budget), Rules({"r": budget}, ir.Complement(Reference("r")))):
        written = write(ir.Sequence((term, literal("b"))), dialect, superset=True)
        assert [loss.what for loss in written.losses if loss.treatment is Treatment.SUPERSET] == [
            "Budget",
            "Complement",
        ]
        assert members(READERS[dialect](written.text), longest=2) == {b"b", b"ab", b"bb"}


def test_budgets_of_characters_are_kept() -> None:
    assert_same(ir.Sequence((ir.Budget(repeat(literal("ab")), characters=3), literal("a"))))


@pytest.mark.parametrize(
    ("term", "feature"),
    [
        (ir.Literal(b"\xff"), "Literal"),
        (ir.ByteClass([(0x80, 0xFF)]), "ByteClass"),
        (ir.SpecialToken("x"), "SpecialToken"),
        (ir.SpecialToken("<x>", or_text=True), "SpecialToken"),
        (ir.TokenSet([]), "TokenSet"),
    ],
)
@pytest.mark.parametrize("dialect", RULES)
def test_what_is_no_text_is_refused(dialect: Dialect, term: Grammar, feature: str) -> None:
    with pytest.raises(UnsupportedFeature) as caught:
        write(Rules({"r": term}, Reference("r")), dialect, superset=True)
    assert (caught.value.feature, caught.value.where) == (feature, "r")


@pytest.mark.parametrize(
    ("term", "texts"),
    [
        (ir.SpecialToken("<|x|>"), {"gbnf": "<|x|>", "llguidance": "<|x|>"}),
        (ir.SpecialToken(5), {"gbnf": "<[5]>", "ebnf": "Token(5)", "llguidance": "<[5]>"}),
        (ir.TokenSet([5]), {"gbnf": "<[5]>", "ebnf": "Token(5)", "llguidance": "<[5]>"}),
        (ir.TokenSet([5], is_excluded=True), {"gbnf": "!<[5]>", "ebnf": "ExcludeToken(5)", "llguidance": "<[^5]>"}),
        (ir.TokenSet(["<x>"], is_excluded=True), {"gbnf": "!<x>"}),
        (ir.TokenSet([3, 5]), {"ebnf": "Token(3, 5)", "llguidance": "<[3,5]>"}),
        (ir.TokenSet([3, (5, 9)]), {"llguidance": "<[3,5-9]>"}),
    ],
)
def test_tokens(term: Grammar, texts: dict[Dialect, str]) -> None:
    for dialect in RULES:
        if dialect in texts:
            assert texts[dialect] in write(term, dialect).text
        else:
            with pytest.raises(UnsupportedFeature):
                write(term, dialect)


def test_gbnf_has_no_left_recursion_and_no_large_counts() -> None:
    """llama.cpp refuses left recursion, and reads counts above 2,000 as unbounded."""
    text = write(lark('start: start "a" | "b"'), "gbnf").text
    assert text == 'root ::= "b" "a"*\n'
    text = write(repeat(literal("a"), 1_500, 5_300), "gbnf").text
    assert max(map(int, re.findall(r"\d+(?=[,}])", text))) <= 1_000
    lengths = {1_499: False, 1_500: True, 5_300: True, 5_301: False}
    from structgen.grammar.flattening import recognizes

    assert {length: recognizes(gbnf(text), "a" * length) for length in lengths} == lengths


def test_repeats_of_one_part_are_one_rule() -> None:
    word = literal("a rather long literal that occurs often") | "-"
    text = write(ir.Sequence((word, word, word)), "gbnf").text
    assert text.count("rather") == 1


@pytest.mark.exhaustive
def test_deep_terms_are_written() -> None:
    term: Grammar = literal("a")
    for _ in range(2_000):
        term = ir.Sequence((literal("("), repeat(term, 0, 2), literal(")")))
    with at_most(20):
        for dialect in RULES:
            assert write(term, dialect).text.count("(") >= 2_000


def test_shared_terms_are_not_multiplied() -> None:
    term: Grammar = literal("ab")
    for _ in range(60):
        term = ir.Sequence((term, term))
    for dialect in RULES:
        assert len(write(term, dialect).text) < 10_000


def test_automata() -> None:
    with pytest.raises(NotRegular):
        right_linear(Reference("r"), {"r": Reference("r") | "a"}, "x")
    assert right_linear(literal("a") & literal("b"), {}, "x") == (EMPTY, {})


def test_unknown_dialects_and_open_terms() -> None:
    with pytest.raises(ValueError, match="'peg'"):
        write(literal("a"), "peg")  # type: ignore[arg-type]
    for dialect in DIALECTS:
        with pytest.raises(GrammarError):
            write(Reference("x"), dialect)


# --- JSON Schema ---


def schema_of(term: Grammar) -> Any:
    return json.loads(write(term, "json-schema").text)


@pytest.mark.parametrize(
    ("term", "members_", "others"),
    [
        (regex(r"[a-z]{2,3}-\d"), ["ab-1"], ["a-1", "ab-1x", "xabc-1"]),
        (ir.JsonString(regex('"|\\\\|/\n')), ['"', "\\", "/\n"], ["", "/"]),
        (regex("a+") & ~literal("aa"), ["a", "aaa"], ["aa", "b", ""]),
        (~regex(".*b.*"), ["", "a"], ["b", "aba"]),
        (regex(r"[^\n]+"), ["a😀"], ["", "\n"]),
        (literal("a.b*(c)[d]{e}^$|?+/\\"), ["a.b*(c)[d]{e}^$|?+/\\"], ["aXb"]),
        (ir.Permutation([literal("a"), literal("b")]), ["ab", "ba"], ["a", "aab"]),
    ],
)
def test_regular_texts_have_a_pattern(term: Grammar, members_: list[str], others: list[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    validator = jsonschema.Draft202012Validator(schema_of(term))
    assert [validator.is_valid(text) for text in members_] == [True] * len(members_)
    assert [validator.is_valid(text) for text in others] == [False] * len(others)
    assert not validator.is_valid(1)


def test_texts_as_values_are_named() -> None:
    assert [loss.what for loss in write(regex("a"), "json-schema").losses] == ["text"]
    assert not write(ir.JsonString(regex("a")), "json-schema").losses


@pytest.mark.parametrize(
    "given", [{"type": "array", "items": {"$ref": "#"}}, '{"type": "string",  "maxLength": 3}', b'{"enum": [1, "a"]}']
)
def test_schemas_come_back(given: Any) -> None:
    """They are unchanged, whether they were planned in Python or not."""
    written = write(json_schema(given), "json-schema").text
    expected = given if isinstance(given, dict) else json.loads(given)
    assert json.loads(written) == expected
    if isinstance(given, str):
        assert written == given + "\n"
    assert [loss.what for loss in write(json_schema(given), "json-schema").losses] == ["policy"]


def test_schemas_with_documents_beside_them_do_not() -> None:
    grammar = json_schema({"$ref": "http://x/y"}, registry={"http://x/y": {"type": "null"}})
    with pytest.raises(UnsupportedFeature, match="documents"):
        write(grammar, "json-schema")
    named = json_schema({"type": "string", "format": "x"}, formats={"x": literal("a")})
    with pytest.raises(UnsupportedFeature, match="formats"):
        write(named, "json-schema")


def test_recursion_is_no_pattern() -> None:
    with pytest.raises(UnsupportedFeature, match="recursive"):
        write(lark('start: "(" start ")" | "a"'), "json-schema")


# --- the table of docs/reference/conversion.md ---

ITEM = literal("a")
ROWS: dict[str, Grammar] = {
    "sequence, choice, repetition, classes": regex("(a|[b-d]+)e"),
    "recursion": lark('start: "(" start ")" | "a"'),
    "left recursion": lark('start: start "a" | "b"'),
    "counts above 1,000": repeat(ITEM, 0, 1_500),
    "intersection, complement": "x" + (regex("a+") & ~regex("aa")),
    "JSON strings by value": "x" + ir.JsonString(ITEM),
    "members in any order, up to five": ir.Permutation([literal(letter) for letter in "abcde"]),
    "members in any order, more": ir.Permutation([literal(letter) for letter in "abcdef"]),
    "budget of characters": ir.Budget(repeat(ITEM), characters=3),
    "budget of tokens": ir.Budget(repeat(ITEM), tokens=3),
    "distinct items, labels": ir.Distinct(literal("[]")),
    "token by id": ir.TokenSet([5]),
    "token by text": ir.SpecialToken("<x>"),
    "any token but some": ir.TokenSet([5], is_excluded=True),
    "captures, temperatures": ir.Capture("x", ITEM),
    "bytes that are no text": ir.Literal(b"\xff"),
    "U+0000 alone": literal("\0"),
}


def table_of_the_page() -> dict[str, dict[str, str]]:
    page = Path(__file__).resolve().parents[4] / "docs" / "reference" / "conversion.md"
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def test_the_table_of_the_page() -> None:
    """The table says of each cell whether it is refused, left out, dropped or reported."""
    table = table_of_the_page()
    assert table.keys() == ROWS.keys()
    for name, term in ROWS.items():
        assert tuple(table[name]) == DIALECTS
        for dialect in DIALECTS:
            cell = table[name][dialect]
            try:
                written = write(term, dialect, superset=True)
            except UnsupportedFeature:
                assert cell.split()[-1] == "no" or cell.endswith("else no") or cell == "of the whole", (name, dialect)
                continue
            treatments = {loss.treatment for loss in written.losses if loss.what.split()[0] not in ("text", "name")}
            assert not cell.endswith("no"), (name, dialect)
            assert (Treatment.SUPERSET in treatments) == (cell == "superset"), (name, dialect)
            assert (Treatment.DROPPED in treatments) == (cell == "dropped"), (name, dialect)
