"""Contexts: the model's input stays cached when tokens are added, taken back or exchanged."""

from __future__ import annotations

import numpy as np
import pytest

from structgen.decode import Context, Generation, Greedy, Multinomial, Sampler, start_generation
from structgen.engine import Vocabulary, compile
from structgen.errors import GenerationError
from structgen.frontends.regex import regex
from structgen.grammar.algebra import select
from structgen.grammar.nodes import Grammar, literal
from structgen.models.protocol.tree import TokenTree
from structgen.models.toy.hash import HashModel

VOCABULARY = Vocabulary([b"", *(bytes([byte]) for byte in range(32, 127)), b"ab", b"re", b"red", b"green"], eos=[0])


def ids(text: str) -> list[int]:
    return VOCABULARY.tokenize(text.encode())


def begin(context: Context, grammar: Grammar, sampler: Sampler | None = None) -> Generation:
    return start_generation(
        context, compile(grammar, VOCABULARY), max_tokens=30, sampler=Greedy() if sampler is None else sampler
    )


def written(generation: Generation) -> str:
    for _ in generation:
        pass
    return generation.data.decode()


def test_generations_go_on_from_each_other() -> None:
    """Two generations in one context give the output of one generation of both, and nothing is run twice."""
    model = HashModel(VOCABULARY, seed=3)
    digits, letters = regex("[0-9]{4}"), regex("[a-z]{4}")
    with Context(model, ids("say: ")) as context, Context(model, ids("say: ")) as other:
        text = written(begin(context, digits)) + written(begin(context, letters))
        assert text == written(begin(other, digits + letters))
        assert context.tokens == other.tokens
        assert context.session.length <= len(context)


def test_the_cache_keeps_what_two_sequences_share() -> None:
    model = HashModel(VOCABULARY, seed=1)
    with Context(model, ids("one two")) as context:
        written(begin(context, regex("[a-z]{6}")))
        context.replace(ids("one three"))
        assert context.session.length == len(ids("one t")) - 1  # what follows it is asked anew
        text = written(begin(context, regex("[a-z]{6}")))
    with Context(model, ids("one three")) as fresh:
        assert text == written(begin(fresh, regex("[a-z]{6}")))


def test_forks_are_independent() -> None:
    model = HashModel(VOCABULARY, seed=1)
    with Context(model, ids("ab")) as context:
        written(begin(context, regex("[a-z]{3}")))
        copy = context.fork()
        assert copy.tokens == context.tokens
        first = written(begin(copy, regex("[0-9]{3}")))
        assert copy.forwards <= 4
        assert first == written(begin(context, regex("[0-9]{3}")))
        copy.close()


@pytest.mark.parametrize("taken", ["", "b", "bc", "bx", "z"])
def test_a_pass_over_several_contexts_is_told_to_each(taken: str) -> None:
    """One pass over two contexts and their trees gives the rows of separate sessions, and so do the next passes."""
    model = HashModel(VOCABULARY, seed=3)
    tree = TokenTree([*ids("b"), *ids("c"), *ids("d")], (-1, 0, 1))
    came = [token for character in taken for token in ids(character)]
    with Context(model, ids("xa")) as first, Context(model, ids("ya")) as second:
        asked = [first.extension(tree), second.extension()]
        rows = model.extend_many(asked)
        distribution, other = first.take_logits(tree, rows[0]), second.take_logits(None, rows[1])
        np.testing.assert_array_equal(distribution, model.start().extend(ids("xa")))
        np.testing.assert_array_equal(other, model.start().extend(ids("ya")))
        assert second.ahead is None
        copy = first.fork()
        for context in (first, copy):
            context.append(came)
            computed = context.computed(1)
            assert len(computed) == "bcd".startswith(taken)
            for row in computed:
                np.testing.assert_array_equal(row, model.start().extend([*ids("xa"), *came]))
            context.append(ids("q"))
            np.testing.assert_array_equal(
                context.rows_on_host(1)[0], model.start().extend([*ids("xa"), *came, *ids("q")])
            )
        copy.close()


def test_truncating_and_errors() -> None:
    model = HashModel(VOCABULARY)
    context = Context(model)
    with pytest.raises(ValueError, match="must hold a token"):
        context.prepare()
    context.append(ids("abc"))
    with pytest.raises(ValueError, match="between 0 and"):
        context.truncate(9)
    written(begin(context, literal("x") | literal("y")))
    context.truncate(1)
    assert len(context) == 1
    assert context.session.length <= 1
    assert "1 token," in repr(context)


@pytest.mark.parametrize("sampler", [Greedy(), Multinomial()])
def test_rejected_outputs_do_not_come_again(sampler: Sampler) -> None:
    """Rejecting each output in turn lists the whole language once, then reports that nothing is left."""
    names = ["red", "re", "green", "blue", "b"]
    found: list[str] = []
    with Context(HashModel(VOCABULARY, seed=2), ids("which? ")) as context:
        generation = begin(context, select(names), sampler)

        def reject_all() -> None:
            while True:
                found.append(written(generation))
                generation.reject(len(generation.tokens), keep=0)

        with pytest.raises(GenerationError, match="was rejected"):
            reject_all()
    assert set(found) == set(names)  # and some of them in several spellings


def test_what_is_kept_is_not_taken_back() -> None:
    with Context(HashModel(VOCABULARY, seed=2), ids("x")) as context:
        generation = begin(context, regex("[ab][cd]"))
        first = written(generation)
        generation.reject(2, keep=1)
        second = written(generation)
        assert second[0] == first[0]
        assert second != first
        generation.reject(2, keep=1)
        with pytest.raises(GenerationError, match="was rejected"):
            written(generation)
        with pytest.raises(ValueError, match="reject: expected"):
            generation.reject(1, keep=2)


def test_scores_of_a_rejected_output_are_those_of_what_stays() -> None:
    """The steps after a rejection are as if the blocked tokens had never been there."""
    with Context(HashModel(VOCABULARY, seed=5), ids("x")) as context:
        generation = begin(context, regex("[a-d]{2}"))
        written(generation)
        generation.reject(2, keep=1)
        written(generation)
        result = generation.result()
    assert len(result.steps) == 3
    assert result.stats.tokens == 2
    assert np.isfinite(result.log_z)
