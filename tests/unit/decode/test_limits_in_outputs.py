"""A limit that is met after tokens are out ends only that output, with its text so far.

The grammars begin with text that needs few steps.  In ``HOSTILE`` more than 1,000 steps are needed after it.
"""

from __future__ import annotations

import copy
import itertools
import pickle
import re
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

import structgen
from structgen.decode import Greedy, Multinomial, generate
from structgen.decode.sampling import AWRS, SMC, sample
from structgen.decode.speculative.speculation import AnyDrafter
from structgen.drafters import DraftModel, PromptLookup
from structgen.engine import Constraint, Matcher, Vocabulary, compile, fill_masks
from structgen.errors import GenerationError, LimitExceeded
from structgen.frontends.regex import regex
from structgen.grammar.limits import Limits
from structgen.models import HashModel
from structgen.program import program
from structgen.samplers import Beam, BestOf

EXPLODING = "(?:" + "|".join(rf"(?:(?:[ab]{{1,{most}}}c?){{1,99}}d?){{1,99}}" for most in (63, 64, 65, 66)) + ")"
HOSTILE = "name: [a-f]{3}-" + EXPLODING
HEALTHY = "name: [a-f]{3}-[a-d]{2,6}"
EITHER = f"(?:x[a-f]{{3}}|y{EXPLODING})"
LIMITS = Limits(steps=4_500)
DRAFTERS: list[AnyDrafter] = [None, "auto", PromptLookup(), "model"]


_NUMBERS = itertools.count()


def vocabulary() -> Vocabulary:
    """Bytes and longer tokens; one is new each time, so that its engine has derived nothing yet.

    The longest ones make the first mask after the text that needs few steps derive much.
    """
    words = [a + b for a in "abcdef" for b in "abcdef"] + ["acadbcbdacad", "bcbdacadbcad", "adacbdbc"]
    words += ["name", ": ", "me: ", f"number {next(_NUMBERS)}"]
    return Vocabulary([b"", *(bytes([value]) for value in range(1, 256)), *(word.encode() for word in words)], eos=[0])


def compiled(pattern: str, tokens: Vocabulary) -> Constraint:
    return compile(regex(pattern), tokens, limits=LIMITS)


def drafter_of(drafter: AnyDrafter, model: HashModel) -> AnyDrafter:
    return DraftModel(model) if drafter == "model" else drafter


@pytest.mark.parametrize("sampler", [Greedy(), Multinomial()])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_error_has_the_text_so_far(sampler: Any, drafter: AnyDrafter) -> None:
    """A prefix of the language, and all that came in chunks; the same with every drafter that samples nothing."""
    tokens = vocabulary()
    model = HashModel(tokens, seed=3)
    chunks: list[str] = []
    with pytest.raises(LimitExceeded, match=r"steps=4500 .*after \d+ tokens of the output, 'name") as caught:
        generate(
            model,
            "a name: abc-ab name: abc-ab",
            compiled(HOSTILE, tokens),
            sampler=sampler,
            drafter=drafter_of(drafter, model),
            stream=lambda chunk: chunks.append(chunk.text),
        )
    error = caught.value
    assert error.text is not None
    assert error.text == "".join(chunks) == tokens.decode(error.tokens).decode()
    assert re.fullmatch("name: [a-f]{3}-[ab]*", error.text)
    undrafted = vocabulary()
    with pytest.raises(LimitExceeded) as alone:
        generate(
            HashModel(undrafted, seed=3),
            "a name: abc-ab name: abc-ab",
            compiled(HOSTILE, undrafted),
            sampler=sampler,
            drafter=None,
        )
    assert alone.value.tokens == error.tokens or (drafter == "model" and sampler != Greedy())


def test_the_error_travels_with_its_text() -> None:
    tokens = vocabulary()
    with pytest.raises(LimitExceeded) as caught:
        generate(HashModel(tokens), "", compiled(HOSTILE, tokens))
    error = caught.value
    assert error.text
    for made in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert (made.text, made.tokens, str(made)) == (error.text, error.tokens, str(error))


def test_an_output_that_a_limit_ended_has_no_result() -> None:
    """Nor does it go on."""
    tokens = vocabulary()
    with structgen.decode.Context(HashModel(tokens), [1]) as context:
        generation = structgen.decode.start_generation(context, compiled(HOSTILE, tokens), max_tokens=99)
        with pytest.raises(LimitExceeded):
            list(generation)
        assert list(generation) == []
        with pytest.raises(GenerationError, match="no result"):
            generation.result()


def test_a_limit_after_the_last_token_ends_nothing() -> None:
    """The output is complete; whether the budget excluded anything is not known, so it counts as cut."""
    texts = [*"xyz", *(a + b + c for a in "abcd" for b in ["", *"abcd"] for c in ["", *"abcd"])]
    tokens = Vocabulary([b"", *sorted({text.encode() for text in texts})], eos=[0])
    constraint = compile(regex(f"x[yz](?:{EXPLODING})?"), tokens, limits=Limits(steps=2_000))
    matcher = constraint.matcher()
    assert matcher.accept_bytes(b"xy") == 2
    with pytest.raises(LimitExceeded):
        matcher.fill_mask(rows_of([matcher]))
    for sampler in (Greedy(), SMC(3)):
        result = generate(HashModel(tokens), "x", constraint, max_tokens=2, sampler=sampler)
        assert re.fullmatch("x[yz]", result.text)
        assert result.finish_reason == "length"


def rows_of(matchers: list[Matcher]) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.full((len(matchers) + 1, (matchers[0].constraint.vocabulary.size + 31) // 32), -1, dtype=np.int32)


@pytest.mark.parametrize("budget", [None, 3, 40])
def test_fill_masks_names_the_rows_and_fills_all_others(budget: int | None) -> None:
    tokens = vocabulary()
    healthy, hostile = compiled(HEALTHY, tokens), compiled(HOSTILE, tokens)
    matchers = [each.matcher() for each in (healthy, hostile, healthy, hostile, healthy)]
    texts = ("name: ", "name: abc-a", "name: abc-ab", "na", "name: abc-abcdab")
    for matcher, text in zip(matchers, texts, strict=True):
        assert matcher.accept_bytes(text.encode()) == len(text)
    expected, failed = rows_of(matchers), []
    for row, matcher in enumerate(matchers):
        try:
            matcher.fill_mask(expected, row, budget=budget)
        except LimitExceeded:
            failed.append(row)
            expected[row] = 0
    found = rows_of(matchers)
    with pytest.raises(LimitExceeded) as caught:
        fill_masks(matchers, found, budget=budget)
    assert caught.value.rows == tuple(failed)
    assert 1 in failed
    assert {0, 2, 4}.isdisjoint(failed)
    assert (found == expected).all()
    alone = rows_of(matchers[1:2])
    with pytest.raises(LimitExceeded) as caught:
        fill_masks(matchers[1:2], alone, budget=budget)
    assert caught.value.rows == (0,)
    assert not alone[0].any()
    assert (alone[1] == -1).all()


@program(limits=LIMITS)
def written(text: str) -> Generator[Any, Any, str]:
    yield text
    return (yield regex(HOSTILE if text.startswith("bad") else HEALTHY))


@pytest.mark.parametrize("settings", [{}, {"sampler": Multinomial(), "seed": 3}, {"drafter": None}])
@pytest.mark.parametrize("batch_size", [1, 3, 6])
def test_other_programs_of_a_batch_go_on(settings: dict[str, Any], batch_size: int) -> None:
    """Their values and scores are those of a batch without the programs that limits end."""
    items = ["good 1", "bad 1", "good 2", "good 3", "bad 2", "good 4"]
    tokens, others = vocabulary(), vocabulary()
    mixed = written.map(items, model=HashModel(tokens), batch_size=batch_size, **settings)
    good = [item for item in items if item.startswith("good")]
    pure = written.map(good, model=HashModel(others), batch_size=batch_size, **settings)
    assert [held.error for held in pure] == [None] * 4
    healthy = [held for held in mixed if items[held.index].startswith("good")]
    assert [(held.value, held.run and held.run.logprob) for held in healthy] == [
        (held.value, held.run and held.run.logprob) for held in pure
    ]
    for held in mixed:
        if items[held.index].startswith("bad"):
            assert held.run is None
            assert isinstance(held.error, LimitExceeded)
            assert re.fullmatch("name: [a-f]{3}-[ab]*", held.error.text or "")
            with pytest.raises(LimitExceeded):
                held.value  # noqa: B018  it raises


@pytest.mark.parametrize(
    "sampler",
    [SMC(12), SMC(12, proposal=Multinomial()), SMC(12, proposal=AWRS(mask_after=None)), Beam(4), BestOf(6)],
    ids=["smc", "scan", "rejection", "beam", "best of"],
)
def test_samplers_of_whole_outputs_go_on_without_the_particles_that_limits_end(sampler: Any) -> None:
    """The samples that are left are strings of the grammar, and do not count as lossless."""
    tokens = vocabulary()
    samples = sample(HashModel(tokens, seed=1), "", compiled(EITHER, tokens), sampler=sampler, seed=4)
    texts = [held.result.text for held in samples.samples]
    assert texts
    assert all(re.fullmatch("x[a-f]{3}", text) for text in texts)
    assert not samples.lossless
    assert "steps=4500" in samples.verification


@pytest.mark.parametrize(
    "sampler",
    [SMC(4), AWRS(), AWRS(mask_after=None), Beam(3), BestOf(2)],
    ids=["smc", "awrs", "rejection", "beam", "best of"],
)
def test_samplers_of_whole_outputs_raise_if_nothing_is_left(sampler: Any) -> None:
    tokens = vocabulary()
    for call in (sample, generate):
        with pytest.raises(LimitExceeded) as caught:
            call(HashModel(tokens), "", compiled(HOSTILE, tokens), sampler=sampler)
        assert re.fullmatch("name: [a-f]{3}-[a-d]*", caught.value.text or "")
