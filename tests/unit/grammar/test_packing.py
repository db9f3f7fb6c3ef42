"""Grammars as bytes: every term survives, equal terms give equal bytes, and no other data is read as a grammar."""

from __future__ import annotations

import hashlib
import pickle
import random
import time
from typing import Any, Final

import pytest
from hypothesis import given, settings, strategies as st

import structgen as sg
from structgen.errors import ArgumentError, GrammarError, LimitExceeded
from structgen.grammar.nodes import (
    Budget,
    ByteClass,
    Capture,
    CharClass,
    Choice,
    Complement,
    Distinct,
    Intersection,
    JsonString,
    Label,
    Literal,
    Permutation,
    Reference,
    Repeat,
    Rules,
    Sequence,
    Shared,
    SpecialToken,
    Tempered,
    TokenSet,
)
from structgen.grammar.nodes.description import Described, Description
from structgen.grammar.packing import VERSION, pack, unpack
from structgen.grammar.printer import to_text
from structgen.grammar.visitor import NODE_TYPES

MAGIC: Final = b"structgen grammar\n"
HEAD: Final = len(MAGIC) + 17

texts = st.text(st.characters(codec=None), max_size=6)  # lone surrogates included
ids = st.one_of(texts, st.integers(-(10**20), 10**20))
few = st.integers(0, 3)
bounds = st.tuples(few, st.one_of(st.none(), few, st.just(10**30)))
byte_ranges = st.tuples(st.integers(0, 255), st.integers(0, 255)).map(sorted).map(tuple)
code_ranges = st.tuples(st.integers(0, 0x10FFFF), st.integers(0, 0x10FFFF)).map(sorted).map(tuple)
token_ranges = st.tuples(st.integers(0, 900), st.integers(0, 900)).map(sorted).map(tuple)
leaves: st.SearchStrategy[sg.Grammar] = st.one_of(
    st.binary(max_size=6).map(Literal),
    st.lists(byte_ranges, max_size=4).map(ByteClass),
    st.lists(code_ranges, max_size=4).map(CharClass),
    texts.map(Reference),
    ids.map(SpecialToken),
    st.text(min_size=1, max_size=4).map(lambda text: SpecialToken(text, or_text=True)),
    st.builds(TokenSet, st.lists(st.one_of(texts, st.integers(0, 900), token_ranges), max_size=4), st.booleans()),
)


def _larger(terms: st.SearchStrategy[sg.Grammar]) -> st.SearchStrategy[sg.Grammar]:
    items = st.lists(terms, max_size=3)
    policies = st.lists(st.tuples(texts, texts), max_size=2).map(tuple)
    descriptions = st.builds(Description, texts, st.just(()), policies, st.sampled_from(["json", "text"]))
    return st.one_of(
        items.map(Sequence),
        items.map(Choice),
        items.map(Intersection),
        st.builds(lambda item, b: Repeat(item, b[0], None if b[1] is None else b[0] + b[1]), terms, bounds),
        st.builds(Permutation, items, items, terms, terms, few, st.one_of(st.none(), st.integers(9, 10**20))),
        terms.map(Complement),
        terms.map(JsonString),
        terms.map(Shared),
        st.builds(Rules, st.dictionaries(texts, terms, max_size=3), terms),
        st.builds(Capture, texts, terms),
        st.builds(Budget, terms, few, st.one_of(st.none(), few)),
        st.builds(Tempered, terms, st.floats(0, 9)),
        st.builds(Distinct, terms, st.booleans(), st.booleans()),
        st.builds(Label, terms, st.sampled_from(["a-label", "bidi", "u-label"])),
        st.builds(Described, terms, descriptions),
        st.lists(terms, min_size=1, max_size=2).map(lambda some: Sequence(some + some)),
    )


grammars = st.recursive(leaves, _larger, max_leaves=12)
EXAMPLES: Final = [
    sg.json_schema({"type": "object", "properties": {"a": {"type": "string"}, "b": {"enum": [1, None, "x"]}}}),
    sg.lark('start: "a" start? | other\nother: /[b-d]+/'),
    "Answer: " + sg.regex(r"[^\n]{1,20}").named("answer") + sg.optional(sg.regex(r"\d+").at_most(tokens=3)),
    sg.grammars.token("<|end|>") + sg.grammars.any_text(),
]


@settings(max_examples=60, deadline=None)
@given(grammars)
def test_every_term_survives(grammar: sg.Grammar) -> None:
    """Field by field, as its pickle and its text have it."""
    data = grammar.to_bytes()
    read = sg.Grammar.from_bytes(data)
    assert read == grammar
    assert read.to_bytes() == data
    assert to_text(read) == to_text(grammar)
    again = pickle.loads(pickle.dumps(grammar))  # shares other nodes than the original
    assert again.to_bytes() == data


def test_all_kinds_of_nodes_are_drawn() -> None:
    """The strategy above leaves no node type out."""
    seen: set[type] = set()

    @settings(max_examples=250, deadline=None, database=None, derandomize=True)
    @given(grammars)
    def collect(grammar: sg.Grammar) -> None:
        stack = [grammar]
        while stack:
            node = stack.pop()
            seen.add(type(node))
            stack += node.children

    collect()
    assert seen >= set(NODE_TYPES)


def test_sharing_does_not_matter() -> None:
    """A part that is one object or two equal ones is written once."""
    one = sg.regex("[a-z]{3,5}x")
    other = sg.regex("[a-z]{3,5}x")
    assert (one + "," + one).to_bytes() == (one + "," + other).to_bytes()
    doubled = one
    for _ in range(64):  # 2 ** 64 occurrences
        doubled = Sequence([doubled, doubled])
    assert len(doubled.to_bytes()) < 400
    assert sg.Grammar.from_bytes(doubled.to_bytes()) == doubled


def test_descriptions_survive_without_entries() -> None:
    """What a value is, and the policies; the entries only where they are asked for."""
    grammar = EXAMPLES[0]
    assert isinstance(grammar, Described)
    read = sg.Grammar.from_bytes(grammar.to_bytes())
    assert isinstance(read, Described)
    assert (read.description.source, read.description.value) == ("json schema", "json")
    assert read.description.policies == grammar.description.policies
    assert not read.description.entries
    whole = unpack(pack(grammar, with_entries=True))
    assert isinstance(whole, Described)
    assert whole == grammar
    assert whole.description.entries == grammar.description.entries


def test_the_form_does_not_change() -> None:
    """Data that version 1 wrote is read by every later version; its bytes are written down here."""
    grammar = sg.literal("yes") | sg.regex("[0-9]{2}").named("n")
    assert grammar.to_bytes() == MAGIC + bytes.fromhex(WRITTEN)
    assert sg.Grammar.from_bytes(MAGIC + bytes.fromhex(WRITTEN)) == grammar


WRITTEN: Final = (
    "01f285c1afa4e3d33cd4af4d075dc2c4ba060001037965730301300906010203150105726567657801076469616c65637406"
    "707974686f6e04746578740c016e0105020501"
)


def refused(data: Any) -> str:
    with pytest.raises(GrammarError) as caught:
        sg.Grammar.from_bytes(data)
    assert caught.value.subject == "saved grammar"
    return caught.value.problem


def test_other_data_is_refused() -> None:
    """Foreign, cut and newer data: one kind of error, which says what it is."""
    data = EXAMPLES[0].to_bytes()
    for foreign in (b"", b"{}", b"PK\3\4", pickle.dumps(3), to_text(EXAMPLES[0]).encode(), b"\0" * 100):
        assert refused(foreign) == "it is something else"
    for length in range(1, len(data)):
        assert refused(data[:length]) == ("it is cut short" if length < len(MAGIC) else "it is damaged")
    assert refused(data + b"\0") == "it is damaged"
    assert "newer" in refused(MAGIC + bytes([VERSION + 1]) + data[len(MAGIC) + 1 :])
    with pytest.raises(ArgumentError, match="expected bytes"):
        sg.Grammar.from_bytes("text")  # type: ignore[arg-type]


def test_every_changed_byte_is_found() -> None:
    """Whichever byte is changed, no grammar comes of it."""
    data = EXAMPLES[1].to_bytes()
    for at in range(0, len(data), 3):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        assert refused(bytes(changed))


@pytest.mark.parametrize("seed", range(4))
def test_forged_data_is_read_or_refused(seed: int) -> None:
    """With a content hash that fits: a sound grammar or the error, in time that is linear in the bytes."""
    chance = random.Random(seed)
    sound = 0
    for _ in range(400):
        payload = bytearray(EXAMPLES[seed].to_bytes()[HEAD:])
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(payload))
            match chance.randrange(4):
                case 0:
                    payload[at] = chance.randrange(256)
                case 1:
                    payload[at:at] = chance.randbytes(chance.randint(1, 6))
                case 2:
                    del payload[at : at + chance.randint(1, 6)]
                case _:
                    payload[at] ^= 1 << chance.randrange(8)
        try:
            grammar = sg.Grammar.from_bytes(forged(bytes(payload)))
        except (GrammarError, LimitExceeded):
            continue
        sound += 1
        assert sg.Grammar.from_bytes(grammar.to_bytes()) == grammar
        assert isinstance(to_text(grammar), str)
    assert 0 < sound < 400


def forged(payload: bytes) -> bytes:
    version = bytes([VERSION])
    return MAGIC + version + hashlib.blake2b(version + payload, digest_size=16).digest() + payload


def test_large_claims_cost_nothing() -> None:
    """Counts without content, rules that are bound twice, and depth: refused or read at once, without recursion."""
    began = time.process_time()
    huge = b"\xff" * 60 + b"\1"
    for payload in (b"\1\0\4" + huge, b"\1\0\2" + huge, b"\1\0\1" + huge, b"\1\0" + huge, b"\1\0\1\xff\xff\xff\x7f"):
        assert refused(forged(payload)) == "it is damaged"
    with pytest.raises(LimitExceeded, match="grammar_nodes"):
        sg.Grammar.from_bytes(forged(b"\xff\xff\xff\x7f\0"))
    with pytest.raises(LimitExceeded, match="source_bytes"):
        sg.Grammar.from_bytes(b"x" * 100, limits=sg.Limits(source_bytes=99))
    rules = b"\2\0\1\0\x0b" + b"\xa8\x46" + b"\1a\1" * 9_000 + b"\1"
    with pytest.raises(GrammarError, match="bound twice"):
        sg.Grammar.from_bytes(forged(rules))
    deep = b"\xa8\x46\0\1\0" + b"\x09\1" * 8_999
    assert sg.Grammar.from_bytes(forged(deep)).to_bytes() == forged(deep)
    assert time.process_time() - began < 5


def test_numbers_have_a_bound() -> None:
    """A count that no grammar needs is refused where it is written."""
    sg.Grammar.from_bytes(Repeat(Literal(b"a"), 0, 2**448 - 2).to_bytes())
    with pytest.raises(GrammarError, match="449 bits"):
        Repeat(Literal(b"a"), 0, 2**448).to_bytes()
