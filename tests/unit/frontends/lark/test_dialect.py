"""The parts of llguidance's dialect that the Lark front end reads: languages against plain Python, and errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import permutations, product

import pytest

from structgen.errors import GrammarError, GrammarSyntaxError, LimitExceeded, UnsupportedFeature
from structgen.frontends.lark import lark
from structgen.grammar.flattening import recognizes
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Budget, Capture, Grammar, SpecialToken, Tempered, TokenSet, literal, postorder
from structgen.grammar.nodes.description import Described, Status
from structgen.testing.small_scope import language

AB = [b"".join(word) for length in range(7) for word in product((b"a", b"b"), repeat=length)]


def nodes_of(grammar: Grammar, kind: type[Grammar]) -> list[Grammar]:
    return [node for node in postorder(grammar) if isinstance(node, kind)]


def matching(pattern: str) -> Callable[[bytes], bool]:
    compiled = re.compile(pattern.encode())
    return lambda word: compiled.fullmatch(word) is not None


def first_end(word: bytes, belongs: Callable[[bytes], bool]) -> int | None:
    """Where the shortest prefix of ``word`` in the language ends: the match of a lazy lexer."""
    return next((end for end in range(len(word) + 1) if belongs(word[:end])), None)


@pytest.mark.parametrize("body", ["[ab]*b", "a*", "[ab]*ab", "(ab|ba)+", "a|ab|abb", "[ab]{2,3}a"])
def test_a_lazy_rule_ends_where_it_first_can(body: str) -> None:
    """Its texts are those of a lexer that stops at the first match."""
    belongs = matching(body)
    expected = {word for word in AB if first_end(word, belongs) == len(word)}
    assert language(lark(f"start[lazy]: /{body}/"), 6, b"ab") == expected


@pytest.mark.parametrize("suffix", ["b", "ab", "aba", "bb|a", "a+b", "(ab)+"])
@pytest.mark.parametrize("body", ["[ab]*", "a*", "(ab)*", "b[ab]{0,2}"])
def test_a_suffix_is_the_first_one(body: str, suffix: str) -> None:
    """The text ends with the first suffix that may follow a text of the body."""
    belongs = matching(f"(?:{body})(?:{suffix})")
    expected = {word for word in AB if first_end(word, belongs) == len(word)}
    assert language(lark(f"start[suffix=/{suffix}/]: /{body}/"), 6, b"ab") == expected


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        ('"b"', [b"b"]),
        ('"ab"', [b"ab"]),
        ('"aba"', [b"aba"]),
        ('"abab"', [b"abab"]),
        ("/bb|a/", [b"bb", b"a"]),
        ("/ab|ba|aab/", [b"ab", b"ba", b"aab"]),
        ("/b(a|b)/", [b"ba", b"bb"]),
    ],
)
@pytest.mark.parametrize("body", ["[ab]*", "a*", "(ab)*", "b[ab]{0,2}", "(aab|b)*"])
def test_a_stop_is_left_out(body: str, stop: str, words: list[bytes]) -> None:
    """The texts are those before the stop, in a text that ends with the first stop."""
    belongs = matching(f"(?:{body})(?:{'|'.join(word.decode() for word in words)})")
    is_body = matching(body)
    expected = {
        word for word in AB if is_body(word) and any(first_end(word + end, belongs) == len(word + end) for end in words)
    }
    assert language(lark(f"start[stop={stop}]: /{body}/"), 6, b"ab") == expected


def test_terminals_are_intersected_and_complemented() -> None:
    """``&`` binds tighter than ``|`` and looser than a sequence; ``~`` binds tighter than a repetition."""
    grammar = lark('start: A\nA: /[ab]+/ & ~("ab" | "b") | "b" & "b" "a" | ~/a*|b*|[ab]{4,}/{2}')
    not_c = matching("a*|b*|[ab]{4,}")
    parts = [word for word in AB if not not_c(word)]
    twice = {one + other for one in parts for other in parts}
    expected = {word for word in AB if (word and word not in {b"ab", b"b"}) or word in twice}
    assert language(grammar, 6, b"ab") == expected


def test_counts_in_braces() -> None:
    """All forms of llguidance are read, also with a template of the same name."""
    grammar = lark('start: "a"{2} "b"{,1} x{"a"} ("b"){1,} "a"{1,2}\nx{y}: y')
    assert language(grammar, 6, b"ab") == {word for word in AB if re.fullmatch(b"aab?ab+a{1,2}", word)}


def test_names_may_have_hyphens() -> None:
    """But an alias is written with an arrow."""
    assert language(lark('start: my-rule->one | MY-T->two\nmy-rule: "a"\nMY-T: "b"'), 1, b"ab") == {b"a", b"b"}


def test_permutations_by_a_parameter() -> None:
    """Each of three letters occurs once, in any order."""
    text = """start: perm::0x0
perm::_: "" %if is_ones([0:3])
    | "a" perm::set_bit(0) %if bit_clear(0)
    | "b" perm::set_bit(1) %if not(bit_set(1))
    | "c" perm::set_bit(2) %if eq([2:3], 0)"""
    assert language(lark(text), 4, b"abc") == {"".join(word).encode() for word in permutations("abc")}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("lt(_, 3)", lambda n: n < 3),
        ("le([0:2], 1)", lambda n: n % 4 <= 1),
        ("or(gt(_, 4), ne([1:3], 1))", lambda n: n > 4 or n >> 1 & 3 != 1),
        ("and(ge(_, 2), is_zeros([0:1]))", lambda n: n >= 2 and n % 2 == 0),
        ("bit_count_eq(_, 2)", lambda n: n.bit_count() == 2),
        ("bit_count_lt([0:2], 2)", lambda n: (n % 4).bit_count() < 2),
        ("true()", lambda n: True),
        ("not(bit_count_ge(_, 1))", lambda n: n == 0),
    ],
)
def test_conditions_of_a_parameter(condition: str, holds: Callable[[int], bool]) -> None:
    """The parameter is the number of a's read so far, up to seven."""
    grammar = lark(f'start: n::0\nn::_: "b" %if {condition}\n  | "a" n::incr([0:3]) %if lt(_, 7)')
    assert language(grammar, 9, b"ab") == {b"a" * n + b"b" for n in range(8) if holds(n)}


def test_functions_of_a_parameter() -> None:
    """Each call gives its result as the number of letters."""
    calls = {
        "bit_and(6)": 5 & 6,
        "bit_or(0x8)": 13,
        "clear_bit(0)": 4,
        "decr(_)": 4,
        "decr([1:2])": 5,
        "incr([0:2])": 6,
        "_": 5,
    }
    for call, expected in calls.items():
        rules = "".join(f'  | "{"a" * n}" %if eq(_, {n})\n' for n in range(1, 16))
        grammar = lark(f"start: f::5\nf::_: n::{call}\nn::_: {rules.strip()[1:]}\n")
        assert language(grammar, 16, b"a") == {b"a" * expected}, call


def test_parts_of_a_text() -> None:
    """Consecutive chunks, words and characters of the text are accepted, or none."""
    chunks = ["ab", "b", "a"]
    expected = {"".join(chunks[i:j]).encode() for i in range(4) for j in range(i, 4)}
    for given in ('"substring_chunks": ["ab", "b", "a"]', '"substring_words": "ab b"', '"substring_chars": "ab"'):
        if "words" in given:
            expected = {"".join(["ab", " ", "b"][i:j]).encode() for i in range(4) for j in range(i, 4)}
        elif "chars" in given:
            expected = {b"", b"a", b"b", b"ab"}
        assert language(lark(f"start: %regex {{{given}}}"), 4, b"ab ") == expected


def test_a_schema_stands_in_a_rule() -> None:
    """Ignored text stands around the value and not inside; the description stays."""
    grammar = lark('start: "<" value ">"\nvalue: %json {"enum": ["a", 1]} // JSON\n%ignore "_"')
    assert language(grammar, 6, b'<>"a1_') == {
        b"<" + before + value + after + b">" + last
        for value in (b'"a"', b"1")
        for before in (b"", b"_", b"__", b"___")
        for after in (b"", b"_", b"__", b"___")
        for last in (b"", b"_", b"__", b"___")
        if len(before + value + after + last) <= 4
    } | {
        first + word
        for first in (b"_", b"__", b"___")
        for word in language(lark('start: "<" value ">"\nvalue: %json {"enum": ["a", 1]}\n%ignore "_"'), 6, b'<>"a1_')
        if word.startswith(b"<") and len(first + word) <= 6
    }
    assert any(isinstance(node, Described) and node.description.source == "json schema" for node in postorder(grammar))


def test_nested_grammars_have_names_and_ignored_text_of_their_own() -> None:
    """The outer white space does not apply to the inner grammar."""
    grammar = lark('start: A %lark {\n start: A A\n A: "b"\n} A\nA: "a"\n%ignore "_"')
    assert language(grammar, 5, b"ab_") >= {b"abba", b"a_bba", b"abb_a"}
    assert b"ab_ba" not in language(grammar, 5, b"ab_")


def test_other_grammars_are_given_by_name() -> None:
    """``@name`` is any grammar that the caller gives."""
    assert language(lark('start: @sub "a"', grammars={"sub": literal("b")}), 3, b"ab") == {b"ba"}
    with pytest.raises(GrammarSyntaxError, match="there is no grammar called 'other'"):
        lark("start: @other", grammars={"sub": literal("b")})


def test_options_of_llguidance() -> None:
    """Options for ignored text at the start and its count, JSON strings and Rust regexps are read."""
    plain = 'start: "a" "b"\n%ignore "_"'
    assert language(lark(plain), 4, b"ab_") >= {b"_ab", b"a__b"}
    once = language(lark('%llguidance {"ignore_once": true}\n' + plain), 4, b"ab_")
    assert once == {b"ab", b"a_b", b"ab_", b"a_b_"}
    initial = language(lark('%llguidance {"allow_initial_skip": true, "ignore_once": true}\n' + plain), 3, b"ab_")
    assert initial == {b"ab", b"a_b", b"ab_", b"_ab"}
    assert language(lark('%llguidance {}\nstart: "\\u0061\\/" /[[:alpha:]]\\/b/'), 5, b"ab/") == {b"a/a/b", b"a/b/b"}
    assert language(lark('start: "\\u0061/" /[ab]\\/b/'), 5, b"ab/") == {b"a/a/b", b"a/b/b"}


def test_tokens_are_symbols() -> None:
    """Tokens are given by name, by id, in ranges, excluded, or as any."""
    grammar = lark("start: <|x|> <[7]> <[1,3-5,4-6]> <[^2]> <[*]>")
    assert nodes_of(grammar, SpecialToken) == [SpecialToken("<|x|>")]
    assert [(node.tokens, node.is_excluded) for node in nodes_of(grammar, TokenSet)] == [  # type: ignore[attr-defined]
        ((7,), False), ((1, (3, 6)), False), ((2,), True), ((), True),
    ]  # fmt: skip


def test_captures_budgets_and_temperatures() -> None:
    """Each attribute is its own node; ignored text stays outside a single terminal."""
    grammar = lark('start: a "!"\na[capture="n", max_tokens=3, temperature=0.5]: /a+/\n%ignore " "')
    [tempered] = nodes_of(grammar, Tempered)
    assert isinstance(tempered, Tempered)
    assert tempered.temperature == 0.5
    assert isinstance(tempered.item, Budget)
    assert tempered.item.tokens == 3
    assert isinstance(tempered.item.item, Capture)
    assert language(grammar, 4, b"a !") >= {b"a !", b" a !"[:4], b"aa!"}
    assert language(lark('start: a "b"\na[max_tokens=0]: "a"'), 3, b"ab") == {b"b"}
    suffix = lark('start[capture, suffix="b", stop_capture="end"]: /a*/')
    assert [node.name for node in nodes_of(suffix, Capture)] == ["start", "end"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("given", ["", ", lazy"])
def test_lazy_adds_nothing_to_a_suffix_or_a_stop(given: str) -> None:
    """They are lazy already."""
    assert language(lark(f'start[suffix="b"{given}]: /[ab]*/'), 4, b"ab") == {b"a" * n + b"b" for n in range(4)}
    assert language(lark(f'start[stop="b"{given}]: /[ab]*/'), 4, b"ab") == {b"a" * n for n in range(5)}


def test_characters_of_a_rule_are_bounded() -> None:
    """A suffix counts, a stop does not; a match beyond the bound is none."""
    assert language(lark("start[max_chars=2]: /a*b?/"), 4, b"ab") == {b"", b"a", b"aa", b"b", b"ab"}
    assert language(lark('start[max_chars=2, suffix="b"]: /a*/'), 4, b"ab") == {b"b", b"ab"}
    assert language(lark('start[max_chars=2, stop="b"]: /a*/'), 4, b"ab") == {b"", b"a", b"aa"}
    assert language(lark("start: x /b*/\nx[max_chars=1, lazy]: /a*b/"), 3, b"ab") == {b"b", b"bb", b"bbb"}
    free = "start: (x | y)\nx[lazy%s]: /a*b/\ny: /[ab]{3}/"
    assert b"aab" in language(lark(free % ", max_chars=2"), 3, b"ab")
    assert b"aba" not in language(lark(free % ", max_chars=2"), 3, b"ab")
    assert {"é", "éé"} == {word for word in ("é", "éé", "ééé") if recognizes(lark("start[max_chars=2]: /é+/"), word)}


@pytest.mark.parametrize("name", ["%llguidance", "%grammar_options"])
def test_options_have_two_names(name: str) -> None:
    """The second is xgrammar's."""
    grammar = lark(f'{name} {{"allow_initial_skip": true}}\nstart: "\\u0061"\n%ignore "_"')
    assert language(grammar, 2, b"a_") == {b"a", b"_a", b"a_"}
    assert isinstance(grammar, Described)
    assert f"{name} allow_initial_skip" in {entry.keyword for entry in grammar.description.entries}


def test_properties_of_characters() -> None:
    """A regexp may name them as the package ``regex`` does, which Lark can use."""
    library = pytest.importorskip("regex")
    texts = [chr(code) for code in (*range(0x20, 0x180), 0x3B1, 0x410, 0x5D0, 0x660, 0x2028, 0x4E00)]
    for pattern in (r"\p{L}", r"\p{Lu}", r"\P{Ll}", r"[\p{Nd}x]", r"[^\p{L}\p{N}]", r"\pL", r"\p{Letter}"):
        grammar, compiled = lark(f"start: /{pattern}/"), library.compile(pattern)
        assert [recognizes(grammar, text) for text in texts] == [compiled.fullmatch(text) is not None for text in texts]


def test_templates_are_passed_as_arguments() -> None:
    """So are templates that were passed as arguments."""
    text = (
        'start: both{twice, "a"} both{opt, "b"}\nboth{f, x}: again{f, x}\nagain{f, x}: f{x}\ntwice{x}: x x\nopt{x}: [x]'
    )
    assert language(lark(text), 4, b"ab") == {b"aa", b"aab"}


def test_definitions_are_overridden_and_extended(tmp_path: object) -> None:
    """This applies to imported ones too, for all references; terminals and templates alike."""
    from pathlib import Path

    folder = Path(str(tmp_path))
    (folder / "base.lark").write_text('pair: item "," item\nitem: LETTER | "x"\nLETTER: "a"\ntwo{y}: y y\n')
    imports = "%import .base (pair, item, LETTER)\n%import .base.two\n"
    text = imports + 'start: pair\n%override item: LETTER\n%extend LETTER: "b"\n'
    assert language(lark(text, path=folder), 3, b"abx,") == {b"a,a", b"a,b", b"b,a", b"b,b"}
    text = imports + 'start: two{"a"}\n%extend two{z}: z\n'
    assert language(lark(text, path=folder), 3, b"a") == {b"a", b"aa"}
    (folder / "changes.lark").write_text('%import .base.item\n%override item: "y"\nuse: item\n')
    with pytest.raises(UnsupportedFeature, match="in an imported file"):
        lark("%import .changes.use\nstart: use", path=folder)


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ('start[foo]: "x"', "1:7", "no attribute 'foo'"),
        ("start[lazy, lazy]: /a/", "1:13", "is given twice"),
        ("start[stop=/b/, suffix=/b/]: /a/", "1:17", "cannot be combined"),
        ("start[max_chars=-1]: /a/", "1:17", "out of range"),
        ("start[max_tokens=-1]: /a/", "1:18", "out of range"),
        ("start[max_tokens=0.5]: /a/", "1:7", "a number from 0 on"),
        ('start[stop_capture="x"]: /a/', "1:7", "needs a suffix"),
        ("start[lazy]: a\na: /b/", "1:14", "only terminals are allowed"),
        ("start: <[3-1]>", "1:8", "wrong order"),
        ("start: <[]>", "1:8", "no token ids"),
        ("start: <[^*]>", "1:8", "malformed token ids"),
        ("start: A\nA: <[1]>", "2:4", "cannot be used inside a terminal"),
        ('start: A\nA: %json {"a": 1}', "2:10", "cannot be used inside a terminal"),
        ('start: %json {"a": ', "1:14", "not closed"),
        ("start: %json x", "1:14", "no JSON follows"),
        ('start: %json {"type": }', "1:23", "%json"),
        ("start: %regex {}", "1:15", "one key"),
        ('start: %regex {"substring_chars": 1}', "1:15", "takes a string"),
        ("%llguidance []\nstart: /a/", "1:13", "takes an object"),
        ('%llguidance {"no_forcing": 1}\nstart: /a/', "1:13", "true or false"),
        ('start: "a" %if true', "1:16", "without a parameter"),
        ('start: r\nr::_: "a"', "1:8", "without its parameter"),
        ('start::_: "a" %if bit_set(0) | "b"', "1:1", "the start rule 'start' is used without its parameter"),
        ('start: %lark { start::_: "a" }', "1:16", "the start rule 'start' is used without its parameter"),
        ('start: r::0\nr: "a"', "1:8", "has no parameter"),
        ('start: r::_\nr::_: "a"', "1:9", "has no parameter"),
        ('start: r::foo(1)\nr::_: "a"', "1:9", "no function 'foo'"),
        ('start: r::0\nr::_: "a" %if foo(_, 1)', "2:15", "no condition 'foo'"),
        ('start: r::0\nr::_: "a" %if bit_set(64)', "2:15", "out of range"),
        ('start: r::0\nr::_: "a" %if and(true, true', "2:15", "not closed"),
        ('start: %lark { a: "x" }', "1:8", "no rule 'start'"),
        ("start: A & B\nA: /a/\nB: /b/", "1:8", "'&' in a rule"),
        ('start: "x"\n%override b: "y"', "2:11", "not defined before"),
        ('%extend start: "y"\nstart: "x"', "1:9", "not defined before"),
        ('start: t{a}\nt{f}: f{"x"}\na: "x"', "2:7", "but a is not one"),
        ("start: t t2{t}\nt2{x}: x\nt{x}: x", "1:8", "without arguments"),
    ],
)
def test_errors_have_their_place(text: str, place: str, problem: str) -> None:
    """Each mistake gives one error with line and column."""
    with pytest.raises(GrammarSyntaxError) as caught:
        lark(text)
    assert f"lark grammar {place}: " in str(caught.value)
    assert problem in caught.value.problem + caught.value.remedy


@pytest.mark.parametrize(
    ("text", "feature"),
    [
        ("start[stop=/a+b*/]: /x*/", "stop"),
        ('start[stop="b", stop_capture="x"]: /a*/', "stop_capture"),
        ("start[suffix=T]: /a*/\nT: /b(?!c)/", "suffix"),
        (r"start[stop=/b\b/]: /a*/", "stop"),
        ('%llguidance {"allow_invalid_utf8": true}\nstart: /a/', "%llguidance allow_invalid_utf8"),
        ('%llguidance {"fast": true}\nstart: /a/', "%llguidance fast"),
        ('%grammar_options {"fast": true}\nstart: /a/', "%grammar_options fast"),
        ('start[max_chars=3]: "a" b\nb: "b"', "max_chars"),
        ("start: /\\p{Klingon}/", "Unicode property 'Klingon'"),
        ('start: %regex {"pattern": "a"}', "%regex pattern"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(text: str, feature: str) -> None:
    """The error has its place and a solution."""
    with pytest.raises(UnsupportedFeature) as caught:
        lark(text)
    assert caught.value.feature == feature
    assert caught.value.where
    assert caught.value.remedy


def test_schemas_that_cannot_be_compiled_are_errors_of_the_grammar() -> None:
    """The error is at the place of the schema."""
    with pytest.raises(GrammarError, match=r"lark grammar 1:14: %json"):
        lark('start: %json {"type": 1}')


def test_all_of_it_is_in_the_report() -> None:
    """Every construct of the grammar has an entry with its place."""
    text = (
        '%llguidance {"no_forcing": true}\nstart[capture]: <[1]> %json {"const": 1} @sub a "x"{2}\n'
        "a[temperature=0.5]: /x/\n"
    )
    grammar = lark(text, grammars={"sub": literal("b")})
    assert isinstance(grammar, Described)
    entries = {(entry.keyword, entry.where): entry.status for entry in grammar.description.entries}
    assert entries == {
        ("%llguidance no_forcing", "1:13"): Status.ANNOTATION,
        ("rule start", "2:1"): Status.ENFORCED,
        ("attribute capture", "2:7"): Status.ENFORCED,
        ("rule a", "3:1"): Status.ENFORCED,
        ("attribute temperature", "3:3"): Status.ANNOTATION,
        ("token <[1]>", "2:17"): Status.ENFORCED,
        ("%json", "2:29"): Status.ENFORCED,
        ("grammar @sub", "2:42"): Status.ENFORCED,
    }


def test_limits() -> None:
    """Endless parameters, nested grammars and deep JSON reach a limit."""
    with pytest.raises(LimitExceeded) as caught:
        lark('start: n::0\nn::_: "a" n::incr(_) | ""')
    assert caught.value.limit == "steps"
    with pytest.raises(LimitExceeded) as caught:
        lark('start: n::0\nn::_: "a" n::incr(_) | ""', limits=Limits(steps=10**8))
    assert caught.value.limit == "grammar_nodes"
    text = 'start: "x"'
    for _ in range(20):
        text = f"start: %lark {{\n{text}\n}}"
    with pytest.raises(LimitExceeded):
        lark(text)
    with pytest.raises(LimitExceeded) as caught:
        lark("start: %json " + '{"not": ' * 100_000)
    assert caught.value.limit == "nesting"
