"""Eight threads that read, compile, fill and generate over one vocabulary find what one thread finds.

``make tsan`` runs this file under the thread sanitizer, with ``STRUCTGEN_THREADS_S`` seconds for the long test. In a
Python without its lock, the threads run Python at the same time too.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

import structgen as sg
from structgen.engine import Vocabulary, compile, fill_masks
from structgen.errors import LimitExceeded
from structgen.frontends.bnf import gbnf
from structgen.frontends.json_schema import json_schema
from structgen.frontends.lark import lark
from structgen.frontends.regex import regex, search_language
from structgen.frontends.structural_tag import structural_tag
from structgen.grammar.flattening import recognizes
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Complement, Grammar, Intersection
from structgen.grammar.nodes.description import Described
from structgen.memory_cache import cache_limits, clear_caches, memory
from structgen.models import HashModel

THREADS = 8
RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3, "uniqueItems": True},
        "when": {"type": "string", "format": "date"},
        "n": {"type": "integer", "minimum": -5, "maximum": 1200},
    },
    "required": ["name", "n"],
    "additionalProperties": {"type": "boolean"},
}
LIST = """
start: "[" (item ("," item)*)? "]"
item: NUMBER | start | pair
pair: "(" NAME ":" item ")"
NAME: /[a-z]{1,8}/
NUMBER: /-?[0-9]+(\\.[0-9]+)?/
"""
GBNF = 'root ::= "[" (word ("," word)*)? "]"\nword ::= [a-z]{1,6} | root'
CALLS = {
    "type": "structural_tag",
    "format": {
        "type": "triggered_tags",
        "triggers": ["<"],
        "tags": [{"begin": "<a>", "content": {"type": "json_schema", "json_schema": RECORD}, "end": "</a>"}],
    },
}


@dataclass
class Person:
    """A type that pydantic reads."""

    name: str
    role: Literal["author", "reader"] | None = None


LETTERS = [search_language("a.{3}b"), Complement(search_language("abc")), regex(".{8,60}")]
SOURCES: list[tuple[Callable[[], Grammar], bytes]] = [
    (
        lambda: json_schema(RECORD),
        b'{"name": "Ada", "tags": ["red", "blue"], "when": "1815-12-10", "n": 36, "x": true}',
    ),
    (lambda: json_schema(RECORD), b'{"name": "Grace Hopper", "tags": [], "n": -4}'),
    (lambda: json_schema({"anyOf": [RECORD, {"type": "array", "items": RECORD}, {"type": "null"}]}), b'[{"name": "B'),
    (
        lambda: json_schema({"type": "object", "additionalProperties": {"type": "number"}}),
        b'{"ab": 12, "name": 1.5e3}',
    ),
    (lambda: lark(LIST), b"[1,(ab:[2.5,-3]),[[]]]"),
    (lambda: lark(LIST, start="pair"), b"(name:[1,2,(x:0)])"),
    (lambda: regex(r"\d{4}-\d{2}-\d{2}( |T)[a-z]{1,40}\.?"), b"2024-05-17 abnameab."),
    (lambda: regex(r"(\w{1,30} ){2,9}(yes|no|true|null)"), "name été true null".encode()),
    (lambda: gbnf(GBNF), b"[ab,[name,[]]]"),
    (lambda: structural_tag(CALLS), b'no<a>{"name": "Ada", "n": 36}</a>'),
    (lambda: json_schema(Person), b'{"name": "Ada", "role": "author"}'),
    (lambda: Intersection([json_schema({"enum": ["name", "null"]}), search_language("n")]), b'"name"'),
    (lambda: Intersection(LETTERS), b"xaabbabnamebb"),
    (lambda: Intersection([regex("[a-z ]{4,50}"), search_language("name")]), b"the name ab"),
]
HOSTILE = regex(r"(?:(?:[ab]{1,63}c?){1,99}d?){1,99}"), Limits(steps=20_000)


def walked(source: int, tokens: Vocabulary, *, with_pool: bool) -> list[str]:
    """What a matcher says along a text: masks with and without a budget, distances, forced text, after forks too."""
    make, text = SOURCES[source]
    matcher = compile(make(), tokens).matcher()
    found = []
    for token in tokens.tokenize(text):
        other = matcher.fork()
        masks = np.full((4, (tokens.size + 31) // 32), -1, dtype=np.int32)
        if with_pool:
            fill_masks([matcher, other], masks)
        else:
            matcher.fill_mask(masks)
            other.fill_mask(masks, 1)
        other.fill_mask(masks, 2, budget=12)
        assert matcher.accept(token)
        assert other.accept(token)
        other.rollback(1)
        other.fill_mask(masks, 3)
        facts = masks.tobytes(), other.forced_bytes(), matcher.is_accepting, other.min_tokens(), other.live_bytes()
        found.append(hashlib.sha256(repr(facts).encode()).hexdigest())
    # The default drafter learns from all threads, and changes no greedy output.
    return [*found, sg.generate(HashModel(tokens, seed=source), "", make(), max_tokens=40).text]


@contextmanager
def caches_dropped() -> Iterator[None]:
    """One thread more drops what caches hold, and bounds and counts it."""
    is_over, before = threading.Event(), cache_limits().megabytes

    def work() -> None:
        while not is_over.wait(0.01):
            clear_caches()
            cache_limits(megabytes=8 if cache_limits().megabytes > 8 else before)
            memory()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        cache_limits(megabytes=before)


def differences(tokens: Callable[[], Vocabulary], expected: list[list[str]], seed: int) -> list[str]:
    """Let all threads walk all sources over one new vocabulary; return what differs from ``expected``, and errors."""
    shared, start, wrong = tokens(), threading.Barrier(THREADS), list[str]()

    def work(number: int) -> None:
        order = random.Random(seed * THREADS + number).sample(range(len(SOURCES)), len(SOURCES))
        start.wait()
        for source in order:
            try:
                if walked(source, shared, with_pool=number % 2 == 0) != expected[source]:
                    wrong.append(f"round {seed}, thread {number}: source {source} differs")
                if source == number:
                    hostile = compile(HOSTILE[0], shared, limits=HOSTILE[1]).matcher()
                    for letter in b"abacabadabacabaab":
                        hostile.fill_mask(np.zeros((1, (shared.size + 31) // 32), dtype=np.int32))
                        hostile.accept(letter)
            except LimitExceeded as error:
                if error.maximum != HOSTILE[1].steps:
                    wrong.append(f"round {seed}, thread {number}: {error}")
            except Exception as error:
                wrong.append(f"round {seed}, thread {number}: {error!r}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


@pytest.fixture(scope="module")
def tokens(json_vocabulary: Vocabulary) -> Callable[[], Vocabulary]:
    """Makes vocabularies whose engines have derived nothing yet."""
    return lambda: Vocabulary(json_vocabulary.tokens, eos=json_vocabulary.eos)


@pytest.fixture(scope="module")
def expected(tokens: Any) -> list[list[str]]:
    """What one thread finds, with an engine for each source."""
    return [walked(source, tokens(), with_pool=False) for source in range(len(SOURCES))]


def test_eight_threads_over_one_vocabulary(tokens: Any, expected: list[list[str]]) -> None:
    assert differences(tokens, expected, 0) == []
    with caches_dropped():
        assert differences(tokens, expected, 1) == []


def test_threads_read_what_another_thread_changes() -> None:
    """Each grammar is that of the schema which its report holds, and no thread meets an error."""
    # A property that comes and goes, so that the dictionary grows and shrinks, and one that says which schema it is.
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"const": 0}}, "required": ["a"]}
    is_over, start, wrong = threading.Event(), threading.Barrier(4), list[str]()

    def change() -> None:
        chance = random.Random(1)
        while not is_over.is_set():
            schema["properties"]["a"] = {"const": chance.randrange(50)}
            schema["properties"].pop(f"x{chance.randrange(9)}", None)
            schema["properties"][f"x{chance.randrange(9)}"] = {"enum": [chance.randrange(9)]}

    def read() -> None:
        start.wait()
        for _ in range(40):
            try:
                grammar = json_schema(schema)
                assert isinstance(grammar, Described)
                kept = grammar.description.schema["properties"]["a"]["const"]  # type: ignore[attr-defined]
                if not recognizes(grammar, f'{{"a": {kept}}}') or recognizes(grammar, f'{{"a": {kept + 1}}}'):
                    wrong.append(f"not that of {kept}")
            except Exception as error:
                wrong.append(repr(error))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    changer, readers = threading.Thread(target=change), [threading.Thread(target=read) for _ in range(4)]
    try:
        for thread in (changer, *readers):
            thread.start()
        for thread in readers:
            thread.join()
    finally:
        is_over.set()
        changer.join()
        sys.setswitchinterval(interval)
    assert wrong == []


@pytest.mark.nightly
def test_eight_threads_over_one_vocabulary_for_ten_minutes(tokens: Any, expected: list[list[str]]) -> None:
    end, seed = time.monotonic() + float(os.environ.get("STRUCTGEN_THREADS_S", "600")), 2
    while time.monotonic() < end:
        with caches_dropped() if seed % 2 else nullcontext():
            assert differences(tokens, expected, seed) == []
        seed += 1
    assert seed > 2
