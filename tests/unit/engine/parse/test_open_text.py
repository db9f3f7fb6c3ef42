"""Captures of texts that are not complete, against all strings of a language with all their derivations."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterable
from typing import Final

import pytest

import structgen as sg
from structgen.engine.parse.captures import find_captures
from structgen.engine.parse.open_text import NamedPart, parts_of_prefix
from structgen.errors import LimitExceeded
from structgen.grammar.nodes import (
    ByteClass,
    Capture,
    Choice,
    Grammar,
    Intersection,
    JsonString,
    Literal,
    Reference,
    Repeat,
    Rules,
    Sequence,
    SpecialToken,
    TokenSet,
    literal,
)

Event = tuple[str, int, int]
"""Name, start and end of a named part in one derivation."""
Derivation = tuple[str, frozenset[Event]]
VOCABULARY: Final = sg.Vocabulary(
    [b"", b"", *(bytes([byte]) for byte in range(256)), b'{"', b'": ', b"ab", b"abc", b'a"'],
    eos=[0],
    special={1: "<s>"},
)


def derivations(term: Grammar) -> set[Derivation]:
    """All strings of a finite term, with the named parts of each derivation."""
    match term:
        case Literal(data=data):
            return {(data.decode("latin-1"), frozenset())}
        case ByteClass(ranges=ranges):
            return {(chr(byte), frozenset()) for low, high in ranges for byte in range(low, high + 1)}
        case Choice(items=items):
            return set().union(*map(derivations, items))
        case Capture(name=name, item=item):
            return {(text, parts | {(name, 0, len(text))}) for text, parts in derivations(item)}
        case Sequence(items=items):
            return joined(map(derivations, items))
        case Repeat(item=item, min=least, max=most):
            assert most is not None
            inner = derivations(item)
            return set().union(*(joined([inner] * count) for count in range(least, most + 1)))
        case _:
            raise NotImplementedError(type(term).__name__)


def joined(parts: Iterable[set[Derivation]]) -> set[Derivation]:
    found: set[Derivation] = {("", frozenset())}
    for part in parts:
        found = {
            (one + other, mine | {(name, start + len(one), end + len(one)) for name, start, end in theirs})
            for one, mine in found
            for other, theirs in part
        }
    return found


def expected(all_of_them: set[Derivation], text: str) -> set[NamedPart]:
    """What all derivations of all strings with this prefix share, by the definition."""
    beyond = len(text) + 1
    cut = [
        {(name, start, min(end, beyond)) for name, start, end in parts if start <= len(text)}
        for word, parts in all_of_them
        if word.startswith(text)
    ]
    closed = {event for event in set.intersection(*cut) if event[2] < beyond}
    parts = {NamedPart(name, text[start:end], is_open=False, start=start) for name, start, end in closed}
    for key in set.intersection(*({event[:2] for event in each} for each in cut)):
        ends = {max(event[2] for event in each if event[:2] == key) for each in cut}
        if len(ends) > 1 or ends == {beyond}:
            parts.add(NamedPart(key[0], text[key[1] : min(ends)], is_open=True, start=key[1]))
    return parts


def random_term(chance: random.Random, depth: int) -> Grammar:
    kind = chance.randrange(8) if depth else chance.randrange(2)
    if kind == 0:
        return Literal("".join(chance.choice("ab") for _ in range(chance.randint(0 if depth else 1, 2))).encode())
    if kind == 1:
        return ByteClass([(0x61, 0x62)])
    items = [random_term(chance, depth - 1) for _ in range(chance.randint(2, 3))]
    if kind in (2, 3):
        return Sequence(items)
    if kind == 4:
        return Choice(items)
    if kind == 5:
        least = chance.randint(0, 1)
        return Repeat(items[0], least, least + chance.randint(0, 2))
    return Capture(chance.choice("xyz"), items[0])


@pytest.mark.parametrize("seed", range(3))
def test_what_all_parses_share(seed: int) -> None:
    """On random finite languages, after every prefix of every string: exactly what enumeration finds."""
    chance = random.Random(seed)
    compared = 0
    while compared < 150:
        term = random_term(chance, 4)
        words = derivations(term)
        if not 1 < len(words) < 300 or not any(parts for _, parts in words):
            continue
        prefixes = {word[:length] for word, _ in words for length in range(len(word) + 1)}
        for text in chance.sample(sorted(prefixes), min(len(prefixes), 12)):
            assert set(parts_of_prefix(term, text)) == expected(words, text), f"{term!s} after {text!r}"
            compared += 1
        whole = chance.choice(sorted(words))[0]
        over = [parts for word, parts in words if word == whole]
        shared = {part for part in parts_of_prefix(term, whole, is_over=True) if not part.is_open}
        assert {(part.name, part.start, part.start + len(part.text)) for part in shared} == set.intersection(
            *(set(parts) for parts in over)
        )


def shown(parts: Iterable[NamedPart]) -> list[tuple[str, str, bool]]:
    return [(part.name, part.text, part.is_open) for part in parts]


def test_nothing_is_taken_back() -> None:
    """Along outputs of a recursive grammar with free text, closed parts stay and open ones only get longer."""
    word = Repeat(ByteClass([(0x61, 0x62)]), 1, 3)
    nested = Sequence([Literal(b"("), Reference("list"), Literal(b")")])
    grammar = Rules({"list": Choice([word, nested]).many(1, sep=",")}, Reference("list"))
    named = Rules({"s": Choice([grammar.named("list"), "<" + Reference("s").named("inner") + ">"])}, Reference("s"))
    tail = ": " + sg.grammars.any_text().named("rest") + "."
    chance = random.Random(1)
    constraint = sg.compile(named + tail, VOCABULARY)
    for _ in range(15):
        matcher = constraint.matcher()
        before: dict[tuple[str, int], NamedPart] = {}
        closed: set[NamedPart] = set()
        for _ in range(12):
            live = [byte for byte in matcher.live_bytes() if 0x20 <= byte < 0x7F]
            if not live:
                break
            matcher.accept_bytes(bytes([chance.choice(live if chance.random() < 0.3 else live[-3:])]))
            now = matcher.captures()
            assert closed <= set(now)
            closed |= {part for part in now if not part.is_open}
            after = {(part.name, part.start): part for part in reversed(now)}
            for key, part in before.items():
                assert after[key].text.startswith(part.text)
            before = after
        text = b"".join(step for step in matcher.taken() if isinstance(step, bytes))
        if matcher.is_accepting:
            found = find_captures(named + tail, text.decode("latin-1"))
            for part in closed:
                assert part.text in (found[part.name] if isinstance(found[part.name], list) else [found[part.name]])


def test_parts_of_a_tagged_text() -> None:
    """A part that may have ended is open, with the text that is certainly in it."""
    grammar = "<" + sg.regex("[a-z]+").named("tag") + ">" + sg.grammars.any_text().named("body") + "</end>"
    for text, parts in {
        "": [],
        "<": [("tag", "", True)],
        "<ab": [("tag", "ab", True)],
        "<ab>": [("tag", "ab", False), ("body", "", True)],
        "<ab>hi</en": [("tag", "ab", False), ("body", "hi", True)],
        "<ab>hi</en ": [("tag", "ab", False), ("body", "hi</en ", True)],
    }.items():
        assert shown(parts_of_prefix(grammar, text)) == parts
    whole = parts_of_prefix(grammar, "<ab>hi</end>", is_over=True)
    assert shown(whole) == [("tag", "ab", False), ("body", "hi", False)]


def test_ambiguous_ends_stay_open() -> None:
    """Where it is the parse that is in doubt, only what all parses have is in the text; what follows is seen."""
    grammar = sg.regex("a+").named("one") + sg.regex("a*") + sg.regex("b").named("two") + sg.regex("c?")
    assert shown(parts_of_prefix(grammar, "aaab")) == [("one", "a", True), ("two", "b", False)]
    recursive = Rules(
        {"e": Choice([Sequence([Reference("e"), Literal(b"+"), Reference("n")]), Reference("n")]), "n": N}, E
    )
    assert shown(parts_of_prefix(recursive, "1+2+")) == [("n", "1", False), ("n", "2", False), ("n", "", True)]


N: Final = Capture("n", ByteClass([(0x30, 0x39)]))
E: Final = Reference("e")


def test_left_recursive_parts_are_nested() -> None:
    """Of parts with one name and start, those that are complete in all parses are closed, the outermost may be open."""
    e = Capture("e", Choice([Sequence([Reference("e"), literal("+1")]), literal("1")]))
    parts = parts_of_prefix(Rules({"e": e}, Reference("e")), "1+1")
    assert shown(parts) == [("e", "1+1", False), ("e", "1+1", True), ("e", "1", False)]


def test_characters_and_strings_that_are_cut() -> None:
    """Within a character, an escape, or a JSON string whose decoded text has parts."""
    grammar = sg.regex("[é-ü]+").named("word") + "!"
    data = "éü".encode().decode("latin-1")
    for length in range(len(data) + 1):
        (part,) = parts_of_prefix(grammar, data[:length])
        assert (part.name, part.is_open) == ("word", True)
        assert part.text == data[:length].encode("latin-1").decode("utf-8", "replace")
    inside = JsonString("id-" + sg.regex("[a-zé]+").named("id") + ";" + sg.regex("[a-z]*").named("more"))
    spelled = json.dumps("id-aéb;c")
    for length in range(len(spelled)):
        parts = {part.name: part for part in parts_of_prefix(inside, spelled[:length])}
        if length < 4:
            assert not parts
        elif "id" in parts and not parts["id"].is_open:
            assert parts["id"].text == "aéb"
        else:
            assert "aéb".startswith(parts["id"].text)
    assert parts["id"].text == "aéb"
    assert shown(parts_of_prefix(inside, spelled)) == [("id", "aéb", False), ("more", "c", False)]


def test_intersections_hold_parts() -> None:
    """Parts of all items, with less certain where an item alone could go on."""
    grammar = Intersection([sg.regex("[ab]{4}").named("all"), sg.regex("a*").named("as") + sg.regex("b*")]) + "."
    parts = shown(parts_of_prefix(grammar, "aab"))
    assert ("all", "aab", True) in parts
    assert shown(parts_of_prefix(grammar, "aabb.")) == [("all", "aabb", False), ("as", "aa", False)]


def test_a_matcher_that_runs() -> None:
    """With tokens that span parts, special tokens, sets of tokens, rollback, forks, and the end."""
    grammar = (
        sg.regex("[a-z]{1,5}").named("word")
        + SpecialToken("<s>")
        + TokenSet([TOKENS.index(b"ab"), TOKENS.index(b"abc")]).named("one")
        + JSON.named("v")
    )
    matcher = sg.compile(grammar, VOCABULARY).matcher()
    assert shown(matcher.captures()) == [("word", "", True)]
    assert matcher.accept(VOCABULARY.tokens.index(b"abc"))
    assert shown(matcher.captures()) == [("word", "abc", True)]
    assert matcher.accept(1)
    done = [("word", "abc", False)]
    assert shown(matcher.captures()) == [*done, ("one", "", True)]
    assert not matcher.accept(2 + ord("a"))
    fork = matcher.fork()
    assert matcher.accept(TOKENS.index(b"ab"))
    assert fork.accept_bytes(b"ab") == 0
    assert shown(matcher.captures()) == [*done, ("one", "ab", False), ("v", "", True)]
    assert shown(fork.captures()) == [*done, ("one", "", True)]
    for token in (TOKENS.index(b'{"'), 2 + ord("a"), TOKENS.index(b'": ')):
        assert matcher.accept(token)
    assert shown(matcher.captures())[2:] == [("v", '{"a": ', True)]
    assert matcher.accept_bytes(b'"ab"}') == 5
    assert shown(matcher.captures())[2:] == [("v", '{"a": "ab"}', False)]
    assert matcher.accept(0)
    assert shown(matcher.captures())[2:] == [("v", '{"a": "ab"}', False)]
    matcher.rollback(5)
    assert shown(matcher.captures())[1:] == [("one", "ab", False), ("v", "", True)]
    assert sg.compile(sg.regex("a+"), VOCABULARY).matcher().captures() == ()


def test_work_is_bounded() -> None:
    """A text that takes too many steps ends in an error; a long one takes time that grows as it does."""
    item = sg.regex("[a-z]+").named("item")
    constraint = sg.compile(item.many(1, sep=","), VOCABULARY, limits=sg.Limits(steps=200_000))
    matcher = constraint.matcher()
    matcher.accept_bytes(b"ab," * 20)
    assert len(matcher.captures()) == 21
    matcher.accept_bytes(b"ab," * 500)
    with pytest.raises(LimitExceeded, match="steps=200000"):
        matcher.captures()
    times = []
    for count in (40, 120):
        began = time.process_time()
        assert len(parts_of_prefix(item.many(1, sep=","), "ab," * count)) == count + 1
        times.append(time.process_time() - began)
    assert times[1] < 40 * times[0] + 0.1


def test_large_choices_and_repeats_without_parts_cost_little() -> None:
    """Parts of a grammar without names are not walked."""
    grammar = sg.json_schema({"type": "array", "items": {"type": "string"}, "maxItems": 5000}).named("list") + "."
    text = json.dumps(["abc"] * 300)
    began = time.process_time()
    assert shown(parts_of_prefix(grammar, text)) == [("list", text, False)]
    assert time.process_time() - began < 5


TOKENS: Final = list(VOCABULARY.tokens)
JSON: Final = sg.json_schema({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
