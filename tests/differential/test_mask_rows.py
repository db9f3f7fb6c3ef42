"""Masks that are derived from those of other states equal accepting every token on its own.

Each case is a place where the engine does not walk the vocabulary: keys that are any name but the declared ones,
counted classes near their bounds, classes of characters, and states whose bounds are too far away to matter.
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from schema_as_written import as_written as json_schema

from structgen.engine import Constraint, Vocabulary, compile
from structgen.frontends.regex import regex
from structgen.grammar.nodes import (
    ANY_CHAR,
    CharClass,
    Choice,
    Complement,
    Grammar,
    Intersection,
    JsonString,
    Literal,
    Repeat,
    Sequence,
    Shared,
)
from structgen.testing.state_walk import allowed_tokens

OPEN = {"properties": {name: {"type": "integer"} for name in ("name", "names", "né", "id", 'a"b', "\n")}}
WORDS = {"type": "string", "minLength": 1, "pattern": r"^(?:\S+\s+){0,9}\S+$"}


def pattern(text: str, **others: Any) -> dict[str, Any]:
    return {"type": "string", "pattern": text, **others}


SCHEMAS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "open object": ({"type": "object", **OPEN}, ['{"', '{"na', '{"name', '{"names', '{"a\\', '{"id": 1, "', '{"\\u00']),
    "open object, names bounded": (
        {"type": "object", **OPEN, "propertyNames": {"maxLength": 6}, "required": ["name"]},
        ['{"', '{"nam', '{"abcde', '{"abcdef'],
    ),
    "pattern names": (
        {"patternProperties": {"^x-": {"type": "null"}}, "properties": {"x-1": {}}, "type": "object"},
        ['{"', '{"x', '{"x-', '{"x-1'],
    ),
    "one of few strings": ({"enum": ["red", "reddish", "green", "grün", 12, None]}, ["", '"', '"re', '"gr', "1"]),
    "at least": ({"type": "string", "minLength": 3}, ['"', '"ab', '"abc', '"é']),
    "at most": ({"type": "string", "maxLength": 5}, ['"', '"ab', '"abcd', '"abcde', '"\\u00e9', '"日本語']),
    "between": ({"type": "string", "minLength": 2, "maxLength": 70}, ['"', '"a', '"ab', '"' + "x" * 66]),
    "class": (pattern("^[a-z]+$"), ['"', '"a']),
    "counted class": (pattern("^[a-z0-9]{2,8}$"), ['"', '"a', '"abcdef', '"abcdefgh']),
    "two classes": (pattern("^[A-Za-z]{2,40}-[0-9]{1,3}$"), ['"', '"ab', '"abcdefgh', '"ab-', '"ab-12']),
    "class and length": (pattern("^[a-z_]*$", minLength=1, maxLength=12), ['"', '"abc', '"abc_def_gh']),
    "dots": (pattern("^.{0,9}$"), ['"', '"abcdefg']),
    "occurs anywhere": (pattern("[0-9]{2}-[a-z]"), ['"', '"x4', '"x42', '"x42-', '"x42-q']),
    "occurs anywhere, counted": (pattern("[a-z0-9_-]{40}"), ['"', '"ab', '"ab cd-', '"' + "a-" * 18, '"é' + "a" * 40]),
    "counted class of many characters": (
        pattern(r"^[\w/.:-]{2,30}$"),
        ['"', '"a', '"sum', '"' + "a/" * 12, '"' + "a" * 29],
    ),
    "names with matches of two patterns": (
        {"type": "object", "patternProperties": {"a": {"type": "null"}, "b": {"enum": [None, 1]}}, "minProperties": 1},
        ['{"', '{"a', '{"ab', '{"xb', '{"é', '{"a\\u0062'],
    ),
    "one of the patterns": (
        {"type": "string", "oneOf": [pattern("customer"), pattern("maker"), pattern("er$")]},
        ['"', '"customer', '"mak', '"é', '"maker '],
    ),
    "a match and no match": ({"allOf": [pattern("né"), {"not": pattern("日")}]}, ['"', '"né', '"n', '"\\u65e5'[:3]]),
    "words": (WORDS, ['"', '"the', '"the ', '"a b c d e f g h', '"a b c d e f g h i j']),
    "words of some length": ({**WORDS, "maxLength": 30}, ['"', '"the cat', '"the cat sat on the mat by m']),
    "words of any length": ({**WORDS, "maxLength": 400}, ['"the cat']),
    "labels of any characters": (
        pattern(r"^(?!.*://)(?=.{1,255}$)((.{1,63}\.){1,127}(?![0-9]*$)[a-z0-9-]+\.?)$"),
        ['"', '"example', '"example.com', '"http:', '"' + "." * 60, '"' + "a" * 60 + ".", '"' + "a." * 110],
    ),
    "few labels of any characters": (
        pattern(r"^(?=.{1,40}$)((.{1,12}\.){1,9}(?![0-9]*$)[a-z0-9-]+\.?)$"),
        ['"', '"abc', '"..', '"ab.c.', '"' + "." * 20, '"' + "abcd." * 7],
    ),
    "labels of some characters": (
        pattern(r'^[^\.\s\\/:\*\?"<>\|\x01-\x1f]{1,32}(\.[^\.\s\\/:\*\?"<>\|\x01-\x1f]{1,32}){1,7}$', maxLength=70),
        ['"', '"Microsoft', '"Microsoft.', '"Microsoft.' + "x" * 30, '"' + "a." * 7],
    ),
    "name of some length": (
        pattern("^[A-Za-z][A-Za-z0-9_]*", maxLength=18),
        ['"', '"Sensor', '"x日本', '"x\\n', '"x\\u00', '"x' + "y" * 16, '"x' + "é" * 17],
    ),
    "one more": (pattern(r"\S$", maxLength=6), ['"', '"ab ', '"ab cd', '"ab cd\\', '"\\ud83d', '"\\ud83d\\ude00 é']),
    "ends in characters of several bytes": (
        pattern("(?:日本|abcde|😀)$", maxLength=5),
        ['"', '"a', '"abc', '"abcd', '"日日日', '"\\ud8', '"\\u65e5\\'],
    ),
    "ends in an escape": (pattern(r"\x01$", maxLength=4), ['"', '"a', '"ab\\n', '"abc', '"abc\\', '"abc\\u0']),
    "ends far away": (pattern("--[a-z]{3}é$", minLength=8, maxLength=12), ['"', '"abc', '"abcde-', '"abcdef--']),
    "address": ({"type": "string", "format": "email", "maxLength": 24}, ['"', '"ada', '"ada@', '"ada@example.org']),
    "host name": (
        {"type": "string", "format": "hostname"},
        ['"', '"example', '"example.', '"a.com', '"a\\u006', '"xn--a', '"a.xn--', '"' + "a." * 125 + "ab"],
    ),
    "long host name": (
        {"type": "string", "format": "hostname"},
        ['"a' + "-" * 30, '"' + "a." * 100, '"' + "a" * 30, '"' + "a" * 62, '"' + ("a" * 62 + ".") * 3 + "a" * 45],
    ),
    "international host name": (
        {"type": "string", "format": "idn-hostname"},
        ['"', '"例え', '"παράδειγμα', '"пример.', '"example.' + "a" * 40, '"example\\u3002'],
    ),
    "host name or address": (
        {"type": "string", "anyOf": [{"format": "ipv4"}, {"format": "hostname"}, {"format": "ipv6"}]},
        ['"', '"256', '"256.', '"127.0.0.', '"localhost', '"fe80'],
    ),
    "identifier": ({"type": "string", "format": "uuid"}, ['"', '"0123', '"01234567-']),
    "regular expression": (
        {"type": "string", "format": "regex"},
        ['"', '"a', '"[', '"[a', '"[a-', '"[a-z', '"x{3', '"(', '"(?:a|(b', '"(a)', '"(?<n>a)', '"(?<no>(a)'],
    ),
    "no counted class": (
        {"type": "string", "not": pattern("^[a-z]{2,8}$")},
        ['"', '"a', '"ab', '"abcdefgh', '"abcdefghi'],
    ),
    "no path": (
        {"type": "string", "not": pattern(r"^[/][/.\w-]{0,4}$")},
        ['"', '"/', '"/a/.', '"/a/b/c', '"é', '"\\u002f'],
    ),
    "more than a line": ({"type": "string", "not": pattern("^.*$")}, ['"', '"a', '"é', '"a\\n', '"\\']),
    "no words": ({"type": "string", "not": pattern("word|Other")}, ['"', '"wor', '"日wo', '"\\ud83d', '"Othe']),
    "no word beyond ASCII": ({"type": "string", "not": pattern("日本|né|x\u3000")}, ['"', '"日', '"n', '"x', '"é']),
    "all but some characters": (pattern("^[^日\u00e9\u2028]*$"), ['"', '"a', '"本', '"e']),
    "no word, and no character": (
        {"allOf": [pattern("^[^\u3000-\u30ff]*$"), {"not": pattern("the")}]},
        ['"', '"th', '"本t', '"é'],
    ),
    "nowhere": ({"type": "string", "not": pattern("ab")}, ['"', '"a', '"ba', '"\\u0061']),
    "neither": (
        {"type": "string", "allOf": [{"not": pattern("^[0-9]+$")}, {"not": pattern("^[a-f-]{3,}$")}]},
        ['"', '"1', '"a', '"abc', '"12a', '"a-'],
    ),
    "pattern and other names": (
        {
            "patternProperties": {"^[a-z]{1,6}$": {"type": "null"}},
            "additionalProperties": {"const": 1},
            "type": "object",
        },
        ['{"', '{"abc', '{"abcdef', '{"abcdefg', '{"abc": null, "A'],
    ),
    "integer": ({"type": "integer", "minimum": 10, "maximum": 5000}, ["", "1", "12", "500"]),
}

REGEXES: dict[str, tuple[str, list[str]]] = {
    "counted, then more": (r"[a-z]{1,20}(?: [a-z]{1,20}){0,3}\.", ["", "ab", "abcdefghij", "ab ab ab ab"]),
    "all but quotes": (r'"[^"\\]{0,10}"!', ['"', '"abcdefgh', '"日本']),
    "either of two loops": (r"(?:[a-z]*1|[a-z0-9]{4,9}2)", ["", "abc", "abcdefgh"]),
    "no x before y": (r"(?:[^x]|x+[^xy])*x?!", ["", "x", "日", "x日", "é"]),
    "no x before y, and few characters": (r"(?:[^x\u4e00-\u4fff]|x+[^xy])*x?!", ["", "x", "é"]),
    "all or nothing": (r"[^a]*|[^b]{4,9}c", ["", "c", "日", "日本"]),
    "not ASCII": (r"\w{3,6}x|[\u0080-\uffff]*\.", ["", "éé", "日"]),
}


HYPHENS = "(?:[a-z](?:[a-z-]{0,50}[a-z])?|[A-Z-]{3,66}|[0-9](?:-{2}|=){0,40})"
# Calls of rules, before and after texts whose bounds few tokens exceed.
CALLS: dict[str, tuple[Grammar, list[str]]] = {
    "bounded part": (
        Sequence((Shared(regex(HYPHENS)), regex("[-=.]{0,9}[!\\n]"))),
        ["", "a", "abc", "a" + "-" * 20, "AB-", "1--", "A" + "-" * 40],
    ),
    "part that may not end for a while": (
        Sequence((Shared(regex("[A-Za-z_-]{3,40}|[A-Za-z_-]{50}[0-9]")), Literal(b"--------!"))),
        ["", "a", "abc-"],
    ),
    "bounded part, or a shared one": (
        Choice((Sequence((Shared(regex("[a-f]+")), Literal(b"!"))), Sequence((regex(HYPHENS), Literal(b"-?"))))),
        ["", "a", "abc", "a" + "-" * 20, "AB-", "1--"],
    ),
    "shared parts at once": (
        Repeat(Choice((Shared(regex("[a-f]+!")), regex("[A-Za-z_-]{1,45} ?"), Literal(b"="))), 0, 50),
        ["", "a", "ab!", "-" * 60, "a!" * 40, "=" * 45, "=" * 49],
    ),
}


def compare(grammar: Grammar, texts: list[str], vocabulary: Vocabulary) -> None:
    """Compare the whole mask after each text with ``accept``."""
    constraint = compile(grammar, vocabulary)
    for text in texts:
        matcher = constraint.matcher()
        data = text.encode()
        assert matcher.accept_bytes(data) == len(data), f"{text!r} is not in the language"
        mask = allowed_tokens(matcher, vocabulary.size)
        alone = set()
        for token in range(vocabulary.size):
            if matcher.accept(token):
                alone.add(token)
                matcher.rollback(1)
        wrong = sorted(mask ^ alone)[:8]
        assert not wrong, f"after {text!r}: {[(token, vocabulary.tokens[token], token in mask) for token in wrong]}"


@pytest.mark.parametrize("name", SCHEMAS)
def test_masks_of_json_schemas(name: str, deepseek_vocabulary: Vocabulary) -> None:
    schema, texts = SCHEMAS[name]
    compare(json_schema(json.dumps(schema)), texts, deepseek_vocabulary)


@pytest.mark.parametrize("name", REGEXES)
def test_masks_of_regexes(name: str, deepseek_vocabulary: Vocabulary) -> None:
    pattern, texts = REGEXES[name]
    compare(regex(pattern), texts, deepseek_vocabulary)


@pytest.mark.parametrize("name", CALLS)
def test_masks_beside_calls(name: str, deepseek_vocabulary: Vocabulary) -> None:
    grammar, texts = CALLS[name]
    compare(grammar, texts, deepseek_vocabulary)


def test_masks_of_more_states_than_one_table_holds(deepseek_vocabulary: Vocabulary) -> None:
    """Each of many tokens is followed by its own digits, so their texts share no state."""
    rng = random.Random(5)
    tokens = [text for text in deepseek_vocabulary.tokens if text.isalpha() and len(text) > 4]
    words = sorted(rng.sample(tokens, 9000))
    grammar = Choice(tuple(Literal(word + b"%05d" % at) for at, word in enumerate(words)))
    compare(grammar, ["", words[0][:1].decode(), words[4500].decode()], deepseek_vocabulary)


@pytest.mark.parametrize("name", SCHEMAS)
def test_tokens_lead_where_their_bytes_lead(name: str, deepseek_vocabulary: Vocabulary) -> None:
    """A token read as a few long pieces and the same token read byte by byte lead to the same state."""
    schema, texts = SCHEMAS[name]
    constraint = compile(json_schema(json.dumps(schema)), deepseek_vocabulary)
    rng = random.Random(11)
    for text in texts:
        matcher = constraint.matcher()
        assert matcher.accept_bytes(text.encode()) == len(text.encode())
        allowed = allowed_tokens(matcher, deepseek_vocabulary.size)
        related = [t for t in allowed if deepseek_vocabulary.tokens[t][:1] in (b"n", b"i", b"x", b"a")]
        for token in rng.sample(sorted(allowed), min(150, len(allowed))) + related[:150]:
            data = deepseek_vocabulary.tokens[token]
            if not data:
                continue
            assert matcher.accept(token)
            end = matcher.state_id
            matcher.rollback(1)
            assert matcher.accept_bytes(data) == len(data)
            assert matcher.state_id == end
            matcher.rollback(1)
            assert matcher.accept(token), "once more, over what is known"
            assert matcher.state_id == end
            matcher.rollback(1)


NAMES = ("", "name", "names", "nap", "n", "né", "日本", "日", "a\U0001f600b", 'a"b', "back\\slash", "/", "\n", "a\tb")
SPELLED = ("named", "nap", "né!", "日本語", "\U0001f600", "a\U0001f600b", "tab", "x")
ESCAPED = (r"n\u0061p", r"\n", r"\u000a", r"\/", r"a\"b", r"back\\slash", r"a\ud83d\ude00b", r"\u65e5\u672c", r"a\tb")
ALMOST_ANY = CharClass([(0, 0), (2, 0x10FFFF)])


@pytest.fixture(scope="module")
def excluding_names(deepseek_vocabulary: Vocabulary) -> tuple[Constraint, Constraint]:
    """Strings without U+0001 that are not among NAMES: as excluded texts, and as two complements at once."""
    names = Complement(Choice([Literal(name.encode()) for name in NAMES]))
    anything = Repeat(ANY_CHAR, 0, None)
    marked = Sequence((anything, Literal(b"\x01"), anything))
    looked_up = JsonString(Intersection((Repeat(ALMOST_ANY, 0, None), names)))
    walked = JsonString(Intersection((names, Complement(marked))))
    return compile(looked_up, deepseek_vocabulary), compile(walked, deepseek_vocabulary)


@pytest.mark.parametrize("text", SPELLED + ESCAPED)
def test_excluded_texts_are_looked_up_as_a_walk_finds_them(
    text: str, excluding_names: tuple[Constraint, Constraint], deepseek_vocabulary: Vocabulary
) -> None:
    size = deepseek_vocabulary.size
    looked_up, walked = (constraint.matcher() for constraint in excluding_names)
    for byte in b'"' + text.encode():
        for matcher in (looked_up, walked):
            assert matcher.accept_bytes(bytes([byte])) == 1
        assert allowed_tokens(looked_up, size) == allowed_tokens(walked, size)
        assert looked_up.min_tokens() == walked.min_tokens()
        masks = np.zeros((2, (size + 31) // 32), dtype=np.int32)
        for budget in (1, 2, 3):
            looked_up.fill_mask_within(masks, 0, budget)
            walked.fill_mask_within(masks, 1, budget)
            assert (masks[0] == masks[1]).all()


OUTSIDE = {
    "counted class": ("[a-z]{2,8}", ("abcdefghi", "a", "é", r"\u0061b", r"a\"")),
    "counted words": (r"[a-z]{1,3}(?:\.[a-z]{1,3}){1,2}", ("a.b.c", "abc.a", "ab..", r"ab\n")),
    "all but a dot": (r"[^.]*", ("ab.", "日本", "a b.c")),
    "everything": (r"(?s:.*)|a", ()),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_outside_of_a_language_rows_are_as_a_walk_finds_them(name: str, deepseek_vocabulary: Vocabulary) -> None:
    text, words = OUTSIDE[name]
    outside = Complement(regex(text))
    anything = Repeat(ANY_CHAR, 0, None)
    marked = Sequence((anything, Literal(b"\x01"), anything))  # all characters are used
    at_once = Choice((Literal(b"0"), JsonString(Intersection((Repeat(ALMOST_ANY, 0, None), outside)))))
    walked = Choice((Literal(b"0"), JsonString(Intersection((outside, Complement(marked))))))
    size = deepseek_vocabulary.size
    for word in ("", *words):
        one, other = (compile(grammar, deepseek_vocabulary).matcher() for grammar in (at_once, walked))
        for byte in b'"' * bool(words) + word.encode():
            for matcher in (one, other):
                assert matcher.accept_bytes(bytes([byte])) == 1
            assert allowed_tokens(one, size) == allowed_tokens(other, size)
            assert one.min_tokens() == other.min_tokens()
            masks = np.zeros((2, (size + 31) // 32), dtype=np.int32)
            for budget in (1, 2, 4):
                one.fill_mask_within(masks, 0, budget)
                other.fill_mask_within(masks, 1, budget)
                assert (masks[0] == masks[1]).all()
            assert one.needs_budget_mask(40) == other.needs_budget_mask(40)


def test_names_that_are_excluded_cannot_be_closed(excluding_names: tuple[Constraint, Constraint]) -> None:
    for name in NAMES:
        for text in (json.dumps(name), json.dumps(name, ensure_ascii=False)):
            for constraint in excluding_names:
                matcher = constraint.matcher()
                assert matcher.accept_bytes(text.encode()) == len(text.encode()) - 1
