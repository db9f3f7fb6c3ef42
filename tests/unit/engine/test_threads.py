"""Eight threads that compile and fill over one vocabulary find what one thread finds.

``make tsan`` runs this file under the thread sanitizer, with ``STRUCTGEN_THREADS_S`` seconds for the long test.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from structgen.engine import Vocabulary, compile, fill_masks
from structgen.errors import LimitExceeded
from structgen.frontends.json_schema import json_schema
from structgen.frontends.lark import lark
from structgen.frontends.regex import regex, search_language
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Complement, Grammar, Intersection

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
    return found


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
    for seed in range(2):
        assert differences(tokens, expected, seed) == []


@pytest.mark.nightly
def test_eight_threads_over_one_vocabulary_for_ten_minutes(tokens: Any, expected: list[list[str]]) -> None:
    end, seed = time.monotonic() + float(os.environ.get("STRUCTGEN_THREADS_S", "600")), 2
    while time.monotonic() < end:
        assert differences(tokens, expected, seed) == []
        seed += 1
    assert seed > 2
