"""Errors of published decoders for texts with gaps, each as a test.

Source: N. Mündler, J. Dekoninck and M. Vechev, "Constrained Decoding of Diffusion LLMs with Context-Free Grammars"
(2025, arXiv 2508.10111), and the code that goes with it.
"""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from structgen.decode import Multinomial
from structgen.decode.diffusion.mean_field import FREE
from structgen.decode.diffusion.posterior import Posterior
from structgen.engine import Vocabulary, compile
from structgen.errors import GenerationError
from structgen.frontends.lark import load
from structgen.frontends.regex import regex
from structgen.methods.infilling import hole, infill
from structgen.methods.infilling.infill import open_language
from structgen.methods.infilling.open_canvas import OPEN
from structgen.models import HashModel
from structgen.models.diffusion import HashDiffusion

JSON = load(Path(__file__).resolve().parents[4] / "grammars" / "json" / "grammar.lark")
MODELS = [HashModel, HashDiffusion]


@pytest.fixture(scope="module")
def vocabulary(json_vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary of JSON with a MASK."""
    return Vocabulary([*json_vocabulary.tokens, b""], eos=[0], special={json_vocabulary.size: "<mask>"})


@pytest.mark.parametrize("kind", MODELS)
def test_the_length_of_a_gap_counts(kind: Any) -> None:
    """A gap of ``k`` tokens is not a gap of any length: longer fillings are refused, and nothing is written outside."""
    vocabulary = Vocabulary([b"", b"a", b"b", b"ab", b""], eos=[0], special={4: "<mask>"})
    pattern = "a(ab){5}b"
    assert re.fullmatch(pattern, "a" + "ababababab" + "b")  # some text between makes it complete
    for most in range(7):
        model = kind(vocabulary)
        if most < 5:
            with pytest.raises(GenerationError, match="cannot be filled"):
                infill(model, ["a", hole(most), "b"], regex(pattern))
        else:
            result = infill(model, ["a", hole(most), "b"], regex(pattern))
            assert result.text == "aabababababb"
            assert len(result.fillings[0].tokens) <= most


def test_exactly_so_many_slots() -> None:
    """For every number of slots, exactly the texts with ``mintok(s) <= k <= len(s)`` fill them, by enumeration."""
    vocabulary = Vocabulary([b"", b"a", b"b", b"ab", b"bab"], eos=[0])
    language = open_language(compile(regex("c?[ab]*b"), Vocabulary([*vocabulary.tokens, b"c"], eos=[0])))
    for text in map("".join, product("ab", repeat=5)):
        constraint = compile(regex(text), vocabulary)
        exact = open_language(constraint)
        spelled = {
            count
            for count in range(7)
            for held in product(range(1, 5), repeat=count)
            if vocabulary.decode(held) == text.encode()
        }
        least = min(spelled)
        for count in range(7):
            assert exact.completable(np.full(count, FREE, dtype=np.int32)) is (least <= count <= len(text))
            assert (count in spelled) is (least <= count <= len(text))
            assert exact.completable(np.full(count, OPEN, dtype=np.int32)) is (least <= count)
    assert not language.completable(np.array([], dtype=np.int32))


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    ("parts", "text"),
    [
        (["nul", hole(3), "ull"], None),  # "nul" and "ull" are not two ends of one "null"
        (["n", hole(1), "l", hole(1)], "null"),
        (["nu", hole(2), "l"], "null"),
        (["tr", hole(4), "rue"], None),
        (["[nul", hole(3), "ull]"], "[null"),  # of two they may be
        (['"nul', hole(3), 'ull"'], '"nul'),  # and in a string
    ],
)
def test_texts_at_the_edges_of_a_gap_are_read_as_they_stand(
    kind: Any, parts: list[Any], text: str | None, vocabulary: Vocabulary
) -> None:
    """A word that a gap cuts is one word only if the whole text says so."""
    model = kind(vocabulary, seed=2)
    if text is None:
        with pytest.raises(GenerationError, match="cannot be filled"):
            infill(model, parts, JSON)
    else:
        result = infill(model, parts, JSON)
        assert result.text.startswith(text)
        json.loads(result.text)


@pytest.mark.parametrize("kind", MODELS)
def test_strings_have_the_escapes_of_json(kind: Any, vocabulary: Vocabulary) -> None:
    r"""``"a\qb"``, raw tabs and half escapes are never written; quotes, backticks and backslashes may be, by json."""
    model = kind(vocabulary, seed=7)
    for wrong in (['["a\\q', hole(3), 'b"]'], ['["a\t', hole(3), 'b"]'], ['["\\u12"', hole(2), "]"]):
        with pytest.raises(GenerationError, match="cannot be filled"):
            infill(model, wrong, JSON)
    sampler: Any = Posterior() if kind is HashDiffusion else Multinomial()
    for seed in range(6):
        for parts in (
            ['["a\\', hole(3), 'b"]'],
            ['["a\\"b`', hole(3), '\\\\"]'],
            ['{"a": "', hole(5), "\\u", hole(3), '"}'],
        ):
            result = infill(model, parts, JSON, sampler=sampler, seed=seed)
            json.loads(result.text)


@pytest.mark.parametrize("kind", MODELS)
def test_nothing_is_tried_and_refused(kind: Any) -> None:
    """No proposal is rejected: there are as many forward passes as chosen tokens, however unlikely they are."""
    vocabulary = Vocabulary(
        [b"", *(bytes([letter]) for letter in range(97, 123)), b""], eos=[0], special={27: "<mask>"}
    )
    grammar = regex("x[ab]{4}[cd]x")
    model = kind(vocabulary, seed=1, writes="xzzzzzx")
    arguments: dict[str, Any] = {"lengths": "longest"} if kind is HashDiffusion else {}
    result = infill(model, ["x", hole(5), "x"], grammar, **arguments)
    assert re.fullmatch("x[ab]{4}[cd]x", result.text)
    assert result.forwards == 5
