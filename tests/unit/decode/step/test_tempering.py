"""Parts of a grammar with their own temperature: the distribution of the tokens inside and outside."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest

from structgen.decode.generate import generate
from structgen.decode.sampling import SMC
from structgen.decode.step.sampler import Greedy, GumbelMax, Multinomial, Sampler
from structgen.engine import Vocabulary, compile
from structgen.grammar.nodes import CharClass, Grammar, Reference, Rules, Tempered, choice, literal, sequence
from structgen.models.toy.hash import HashModel

LETTERS = CharClass([(97, 98)])
VOCABULARY = Vocabulary([b"a", b"b", b"!", b""], eos=[3])
MODEL = HashModel(VOCABULARY, seed=3)
PROMPT = "!"


def distribution(temperatures: list[float]) -> dict[bytes, float]:
    """The distribution of texts of letters, one token each; each token has its own temperature."""
    found: dict[bytes, float] = {}
    for letters in product((0, 1), repeat=len(temperatures)):
        probability, session = 1.0, MODEL.start()
        logits = session.extend(MODEL.encode_prompt(PROMPT))
        for token, temperature in zip(letters, temperatures, strict=True):
            scaled = np.exp((logits[:2] - logits[:2].max()) / temperature)
            probability *= float(scaled[token] / scaled.sum())
            logits = session.extend([token])
        found[bytes(97 + token for token in letters)] = probability
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "sampler", [Multinomial(temperature=4.0), GumbelMax(Multinomial(temperature=4.0))], ids=["multinomial", "gumbel"]
)
def test_the_distribution_inside_and_outside(sampler: Sampler) -> None:
    """Frequencies show the sampler's temperature outside, and that of the innermost part inside."""
    inner = Tempered(LETTERS, 0.5)
    grammar = sequence(LETTERS, Tempered(sequence(LETTERS, inner), 2.0), LETTERS)
    constraint = compile(grammar, VOCABULARY)
    expected = distribution([4.0, 2.0, 0.5, 4.0])
    plain = distribution([4.0] * 4)
    draws = 1_200
    seen = Counter(
        generate(MODEL, PROMPT, constraint, max_tokens=8, sampler=sampler, seed=seed).data for seed in range(draws)
    )
    assert set(seen) <= set(expected)
    statistic = sum((seen[text] - draws * p) ** 2 / (draws * p) for text, p in expected.items())
    assert statistic < 44.0  # chi-square with 15 degrees of freedom: exceeded once in ten thousand
    other = sum((seen[text] - draws * p) ** 2 / (draws * p) for text, p in plain.items())
    assert other > 44.0  # the same outputs do not fit one temperature for all


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_greedy_and_zero(temperature: float) -> None:
    """At temperature 0 the most probable token is taken, by any sampler; elsewhere greedy stays greedy."""
    grammar = sequence(LETTERS, Tempered(LETTERS, temperature), LETTERS)
    texts = {generate(MODEL, PROMPT, grammar, max_tokens=8, sampler=Greedy(), seed=seed).data[:1] for seed in range(20)}
    assert len(texts) == 1
    inside = {generate(MODEL, PROMPT, grammar, max_tokens=8, sampler=Greedy(), seed=seed).data for seed in range(60)}
    assert (len(inside) > 1) == (temperature > 0)


def test_which_part_is_open() -> None:
    """At the end of a part that may go on its temperature holds; rules, tail calls and recursion do not hide it."""
    nested = Rules(
        {
            "s": choice(sequence("a", Tempered(choice(Reference("s"), "b"), 0.25)), Reference("t")),
            "t": Tempered(LETTERS.many(1, 2), 0.75),
        },
        sequence(Reference("s"), "!"),
    )
    matcher = compile(nested, VOCABULARY).matcher()
    read = [matcher.temperature()]
    for token in (0, 0, 1, 1, 2):
        assert matcher.accept(token)
        read.append(matcher.temperature())
    assert read == [0.75, 0.75, 0.75, 0.75, None, None]
    matcher.rollback(5)
    assert matcher.temperature() == 0.75
    assert compile(sequence("a", LETTERS), VOCABULARY).matcher().temperature() is None


def test_equal_parts_at_other_temperatures_are_told_apart() -> None:
    """This includes grammars on one vocabulary, whose automata are shared."""
    for temperature in (0.1, 0.2, 0.1):
        matcher = compile(sequence(Tempered(LETTERS, temperature), "!"), VOCABULARY).matcher()
        assert matcher.temperature() == temperature


@pytest.mark.parametrize("grammar", [Tempered(literal("ab"), 1.0), sequence("a", Tempered(LETTERS, 0.5))])
def test_who_cannot_heed_temperatures_refuses_them(grammar: Grammar) -> None:
    """Samplers of whole outputs have one distribution for all tokens."""
    with pytest.raises(ValueError, match="temperature"):
        generate(MODEL, PROMPT, grammar, max_tokens=8, sampler=SMC(2))


def test_drafts_stay_away() -> None:
    """The output is the same with a drafter, since there are no drafts."""
    grammar = sequence(LETTERS.many(3, 3), Tempered(LETTERS.many(3, 3), 0.5))
    one, other = (
        generate(MODEL, PROMPT, grammar, max_tokens=8, sampler=Multinomial(), seed=5, drafter=drafter)
        for drafter in ("auto", None)
    )
    assert one.tokens == other.tokens
