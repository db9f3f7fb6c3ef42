"""Programs whose answers are written by samplers of whole outputs, and judged by potentials."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field

import structgen
from structgen.decode import Greedy, Multinomial
from structgen.decode.sampling import AWRS, SMC, Beam, BestOf
from structgen.engine import Vocabulary
from structgen.errors import GenerationError, ProgramError, ValidationFailed
from structgen.frontends.regex import regex
from structgen.models.toy.hash import HashModel
from structgen.program import ask, program, quoted
from structgen.samplers import ExactBest


class Span(BaseModel):
    start: int = Field(ge=0, le=30)
    end: int = Field(ge=0, le=30)


@structgen.potentials.potential(over="value")
def in_order(span: Span) -> bool:
    return span.start < span.end


@program(max_tokens=40)
def find(text: str) -> Span:
    """When? {text}"""


SAMPLERS: list[Any] = [SMC(8), AWRS(), BestOf(3), Beam(3), ExactBest(limit=100_000)]


@pytest.mark.parametrize("sampler", SAMPLERS[:4], ids=lambda sampler: type(sampler).__name__)
def test_samplers_write_valid_answers(json_vocabulary: Vocabulary, sampler: Any) -> None:
    model = HashModel(json_vocabulary, writes='{"start": 7, "end": 3}')
    span = find("now", model=model, sampler=sampler)
    assert isinstance(span, Span)
    assert find("now", model=model, sampler=sampler) == span


@pytest.mark.exhaustive
@pytest.mark.parametrize("sampler", [Greedy(), Multinomial(), SMC(64, ess_threshold=0)], ids=repr)
def test_potentials_hold_in_programs(json_vocabulary: Vocabulary, sampler: Any) -> None:
    for seed in range(4):
        model = HashModel(json_vocabulary, seed=seed)
        span = find("now", model=model, sampler=sampler, potentials=[in_order], seed=seed)
        assert span.start < span.end


def test_potentials_of_the_program_and_of_one_answer(json_vocabulary: Vocabulary) -> None:
    seen: list[str] = []

    def note(text: str) -> bool:
        seen.append(text)
        return True

    def short(text: str) -> bool:
        return len(text) <= 3

    @program(potentials=[note], sampler=SMC(8))
    def two() -> Generator[Any, Any, tuple[str, str]]:
        yield "Two words: "
        first = yield ask(regex("[a-c]{2,5}"), potentials=[short])
        second = yield ask(regex("[a-c]{2,5}"), sampler=Greedy())
        return first, second

    first, second = two(model=HashModel(json_vocabulary, seed=2))
    assert len(first) <= 3
    assert first in seen
    assert second in seen
    assert re.fullmatch("[a-c]{2,5}", second)


def test_what_validators_refuse_is_written_anew(json_vocabulary: Vocabulary) -> None:
    refused: list[str] = []

    def not_a(word: str) -> str:
        if word == "alpha":
            refused.append(word)
            raise ValueError("not that one")
        return word

    class Named(BaseModel):
        name: Annotated[Literal["alpha", "beta", "gamma"], AfterValidator(not_a)]

    def asked(kind: Any, **settings: Any) -> Any:
        def function() -> Any:
            """Which?"""

        function.__annotations__["return"] = kind
        return program(**settings)(function)

    name = asked(Named)

    model = HashModel(json_vocabulary, writes='{"name": "alpha"}')
    for sampler in (SMC(4), Beam(2)):
        refused.clear()
        run = name.run(model=model, sampler=sampler)
        assert run.value.name in ("beta", "gamma")
        assert refused

    def nothing(word: str) -> str:
        raise ValueError("none will do")

    class Never(BaseModel):
        name: Annotated[Literal["alpha", "beta", "gamma"], AfterValidator(nothing)]

    never = asked(Never, tries=2)
    with pytest.raises((ValidationFailed, GenerationError)):
        never(model=model, sampler=SMC(4))


def test_searched_quotations_need_a_sampler_of_tokens(json_vocabulary: Vocabulary) -> None:
    model = HashModel(json_vocabulary)
    answer = quoted(str, "Ada wrote it", exact=True)

    @program(sampler=SMC(4))
    def who() -> Generator[Any, Any, str]:
        yield "Who?"
        found: str = yield answer
        return found

    with pytest.raises(ProgramError, match=r"chosen one by one; SMC writes whole outputs; take evidence=True"):
        who(model=model)


def test_the_score_of_an_answer_is_that_of_its_steps(json_vocabulary: Vocabulary) -> None:
    model = HashModel(json_vocabulary, writes='{"start": 7, "end": 3}')
    run = find.run("now", model=model, sampler=SMC(8))
    assert run.logprob is not None
    assert run.log_z is not None
    assert run.stats is not None
    assert run.stats.tokens > 0
    assert run.stats.forwards > 0


def test_canonical_answers() -> None:
    """``canonical=True`` holds for the text of each answer, quotations that are searched for included."""
    from split_tokenizers import split_tokenizer, split_vocabulary

    def written(run: Any) -> list[bool]:
        encode = split_tokenizer("gpt2").encode
        return [tuple(encode(one.text).ids) == one.result.tokens for one in run.outcomes]

    @program(max_tokens=12)
    def two() -> Generator[Any, Any, None]:
        yield "ab "
        yield ask(regex("(ab|a|b| ){4}"))
        yield ask(regex("['abrest ]{5}"), sampler=Multinomial())

    document = "ab abba 's bab aba's ab ab 12 123"
    quotation = Annotated[str, Field(min_length=5)]
    plain = []
    for seed in (1, 8):
        model = HashModel(split_vocabulary("gpt2"), seed=seed)
        assert written(two.run(model=model, seed=seed, canonical=True)) == [True, True]
        plain += written(two.run(model=model, seed=seed))
        found = structgen.extract.run(quotation, document, model=model, canonical=True, max_tokens=30)
        assert written(found) == [True]
        assert found.evidence[0].text in document
        assert written(structgen.extract.run(quotation, document, model=model, max_tokens=30)) == [False]
    assert False in plain
    with pytest.raises(ProgramError, match="exclude each other"):
        two(model=model, canonical=True, marginals=True)


def test_canonical_answers_are_those_of_local_models_of_tokens(json_vocabulary: Vocabulary) -> None:
    from structgen.integrations.openai_server import remote
    from structgen.models.toy.hash import HashDiffusion

    vocabulary = Vocabulary([b"a", b"b", b"", b""], eos=[2], special={3: "<mask>"})

    @program(canonical=True)
    def one() -> Annotated[str, regex("ab")]:
        """One."""

    for model in (HashDiffusion(vocabulary), remote("http://localhost:1/v1", "m")):
        with pytest.raises(ProgramError, match="canonical"):
            one(model=model)
