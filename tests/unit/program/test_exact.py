"""The most probable quotations, against a comparison of all of them in plain Python."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from pydantic import AfterValidator, BaseModel, Field, model_validator

import structgen.integrations.openai_server
from structgen.engine import Vocabulary
from structgen.errors import GenerationError, LimitExceeded, ProgramError, ValidationFailed
from structgen.integrations.openai_server import remote
from structgen.models.toy.hash import HashModel
from structgen.program import Retracted, extract, quoted
from structgen.program.outcome import Outcome, Run


@dataclass
class One:
    a: str


@dataclass
class Two:
    a: str
    b: str | None


JOINTS = [
    b'"a',
    b"a b",
    b"ab",
    b'b"',
    b'",',
    b'", ',
    b'", "',
    b'"}',
    b'"]',
    b': "',
    b' "',
    b'":',
    b'{"',
    b'["',
    b'",a',
    b" b",
]
DOCUMENTS = ("a b", "ab a", 'b"a', "a\\b")


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    """Every byte, and tokens that span the ends of quotations; id 0 is EOS."""
    return Vocabulary(
        [b"", *(bytes([byte]) for byte in range(256)), *JOINTS, b"null", b"a\\", b"\\\\", b'\\"'], eos=[0]
    )


class Sharp(HashModel):
    """A sharper hash model, for which token by token is often not the best."""

    scale = 1.5

    def logits(self, state: int, matched: int) -> Any:
        return super().logits(state, matched) * np.float32(self.scale)


def parts(document: str) -> list[str]:
    return sorted({document[i:j] for i in range(len(document)) for j in range(i + 1, len(document) + 1)})


def spelled(text: str | None) -> str:
    return json.dumps(text, ensure_ascii=False)


def outputs_of(kind: Any, document: str) -> set[bytes]:
    """All possible outputs for a type."""
    held = parts(document)
    if kind is One:
        texts = {f'{{"a": {spelled(part)}}}' for part in held}
    elif kind is Two:
        texts = {f'{{"a": {spelled(a)}, "b": {spelled(b)}}}' for a, b in product(held, [*held, None])}
    else:
        texts = {spelled(None)} if kind == (str | None) else set()
        texts |= {spelled(part) for part in held} if kind == (str | None) else set()
        if kind is ITEMS:
            lists = [items for count in range(3) for items in product(held, repeat=count)]
            texts |= {"[" + ", ".join(map(spelled, items)) + "]" for items in lists}
    return {text.encode() for text in texts}


ITEMS = Annotated[list[str], Field(max_length=2)]


def closing(data: bytes, opened: int) -> int | None:
    """The place where the string that opens before ``opened`` is closed."""
    at = opened
    while at < len(data):
        if data[at] == ord('"'):
            return at + 1
        at += 2 if data[at] == ord("\\") else 1
    return None


def distribution(model: HashModel, tokens: list[int]) -> Any:
    logits = model.start().extend(tokens).astype(np.float64)
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def all_quotations(
    model: HashModel, prompt: list[int], before: list[int], begins: bytes, outputs: set[bytes]
) -> dict[tuple[tuple[int, ...], bytes], float]:
    """Log-probabilities of all possible quotations, each by the tokens before its last and its text."""
    texts = model.vocabulary.tokens
    prefixes = {output[:length] for output in outputs for length in range(len(output) + 1)}
    written = b"".join(texts[token] for token in before)
    found: dict[tuple[tuple[int, ...], bytes], list[float]] = {}

    def follow(tokens: tuple[int, ...], data: bytes, score: float) -> None:
        scores = distribution(model, [*prompt, *before, *tokens])
        for token, text in enumerate(texts):
            longer = data + text
            if token == 0 or written + longer not in prefixes:
                continue
            if not (longer.startswith(begins) or begins.startswith(longer)):
                continue
            end = closing(longer, len(begins))
            if len(longer) < len(begins) or end is None:
                follow((*tokens, token), longer, score + scores[token])
            else:
                found.setdefault((tokens, longer[:end]), []).append(score + scores[token])

    follow((), b"", 0.0)
    return {key: float(np.logaddexp.reduce(scores)) for key, scores in found.items()}


def places_of(outcome: Outcome) -> Iterator[tuple[tuple[Any, ...], list[tuple[list[int], bytes, int]]]]:
    """The quoted fields, each with the places where its search may have started, the likeliest first.

    A place is the tokens before it, the bytes from there to the opening quotation mark, and the number of bytes before.
    The search starts with the token in which the sampler would have begun the quotation, but may spell that token's
    bytes before the quotation mark with several tokens.
    """
    tokens, texts = list(outcome.result.tokens), outcome.result.vocabulary.tokens
    starts = [sum(len(texts[token]) for token in tokens[:count]) for count in range(len(tokens) + 1)]
    for held in outcome.fields:
        if isinstance(held.value, str):
            firsts = [count for count, start in enumerate(starts[:-1]) if held.start - 4 <= start <= held.start]
            first = max(count for count, start in enumerate(starts[:-1]) if start <= held.start)
            yield (
                held.path,
                [
                    (tokens[:count], outcome.result.data[starts[count] : held.start + 1], starts[count])
                    for count in sorted({first, *firsts}, reverse=True)
                ],
            )


def run_of(model: HashModel, kind: Any, document: str, **settings: Any) -> Run[Any]:
    return extract.run(kind, document, model=model, whole_words=False, instruction="a", max_tokens=60, **settings)


def prompt_of(model: HashModel, kind: Any, document: str) -> list[int]:
    answer = quoted(kind, document, whole_words=False)
    from structgen.program.prompt import description_of

    asked = " ".join(filter(None, ["a", description_of(answer)]))
    return model.encode_prompt(f"{asked}\n\n{document}")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("kind", [One, Two, ITEMS, str | None], ids=["one", "two", "list", "optional"])
def test_the_quotation_is_the_most_probable_of_all(vocabulary: Vocabulary, kind: Any, document: str, seed: int) -> None:
    """Every quoted field, given the tokens before it, has the same quotation with the same probability."""
    model = Sharp(vocabulary, seed=seed)
    run = run_of(model, kind, document, evidence="exact")
    outcome = run.outcomes[0]
    outputs = outputs_of(kind, document)
    assert outcome.result.data in outputs
    prompt = prompt_of(model, kind, document)
    known = {held.path: held for held in run.evidence}
    seen = 0
    for path, places in places_of(outcome):
        found = []
        for before, begins, start in places:
            every = all_quotations(model, prompt, before, begins, outputs)
            best = max(every, key=lambda key: every[key])
            end = closing(outcome.result.data, start + len(begins))
            found.append((every[best], best[1] == outcome.result.data[start:end]))
        assert (pytest.approx(known[path].logprob, abs=1e-5), True) in found
        seen += 1
    assert seen == len(run.evidence)
    assert all(held.text == document[held.start : held.end] for held in run.evidence)


@pytest.mark.exhaustive
def test_it_is_never_less_probable_than_token_by_token(vocabulary: Vocabulary) -> None:
    """The first quotation of both, given the same tokens before it, is compared; often it is more probable."""
    better = 0
    for seed in range(60):
        document = DOCUMENTS[seed % len(DOCUMENTS)]
        model = Sharp(vocabulary, seed=100 + seed)
        exact, greedy = (run_of(model, One, document, evidence=kind) for kind in ("exact", True))
        ((_, places),) = places_of(greedy.outcomes[0])
        before, begins, _ = places[0]
        result = greedy.outcomes[0].result
        assert list(exact.outcomes[0].result.tokens[: len(before)]) == before
        every = all_quotations(model, prompt_of(model, One, document), before, begins, outputs_of(One, document))
        held = {
            len(tokens): score
            for (tokens, data), score in every.items()
            if tuple(result.tokens[len(before) :])[: len(tokens)] == tokens
            and result.data[sum(len(vocabulary.tokens[token]) for token in before) :].startswith(data)
        }
        found = exact.evidence[0]
        assert found.logprob is not None
        score = held[max(held)]  # the last token of the others reaches further than the one that was taken
        assert found.logprob >= score - 1e-6
        better += found.logprob > score + 1e-6
    assert better > 10


@pytest.mark.parametrize("seed", range(12))
def test_a_plain_text_ends_with_the_stop(vocabulary: Vocabulary, seed: int) -> None:
    document = DOCUMENTS[seed % len(DOCUMENTS)]
    model = Sharp(vocabulary, seed=seed)
    run = run_of(model, str, document, evidence="exact")
    prompt = prompt_of(model, str, document)
    every: dict[str, float] = {}
    for part in parts(document):
        work: list[tuple[list[int], bytes, float]] = [([], part.encode(), 0.0)]
        while work:
            tokens, rest, score = work.pop()
            scores = distribution(model, prompt + tokens)
            if not rest:
                every[part] = max(every.get(part, -math.inf), score + scores[0])
            for token, text in enumerate(vocabulary.tokens):
                if text and rest.startswith(text):
                    work.append(([*tokens, token], rest[len(text) :], score + scores[token]))
    best = max(every, key=lambda part: every[part])
    assert run.value == best
    assert run.evidence[0].logprob == pytest.approx(every[best], abs=1e-5)
    assert run.outcomes[0].result.finish_reason == "stop"


class Alone:
    """The same model, one sequence at a time."""

    def __init__(self, model: HashModel) -> None:
        self.name, self.vocabulary, self.max_context = model.name, model.vocabulary, model.max_context
        self.encode_prompt, self.start = model.encode_prompt, model.start


@pytest.mark.parametrize("seed", range(8))
def test_packs_make_no_difference(vocabulary: Vocabulary, seed: int) -> None:
    model = Sharp(vocabulary, seed=seed)
    packed = run_of(model, Two, "ab a", evidence="exact", drafter=None)
    alone = run_of(Alone(model), Two, "ab a", evidence="exact", drafter=None)  # type: ignore[arg-type]
    assert packed.outcomes[0].result.steps == alone.outcomes[0].result.steps
    assert packed.evidence == alone.evidence
    assert packed.stats is not None
    assert alone.stats is not None
    assert packed.stats.forwards <= alone.stats.forwards
    many = extract.map(
        [(Two, "ab a"), (Two, "a b")], model=model, evidence="exact", whole_words=False, instruction="a", max_tokens=60
    )
    assert many[0].run is not None
    assert many[0].run.evidence == packed.evidence


@pytest.mark.parametrize("seed", range(8))
def test_the_scores_of_the_steps_are_those_of_the_model(vocabulary: Vocabulary, seed: int) -> None:
    """``logprob + log_z`` of each step is the model's own, as in any generation; the model has run every token."""
    model = Sharp(vocabulary, seed=seed)
    result = run_of(model, Two, "ab a", evidence="exact").outcomes[0].result
    prompt = prompt_of(model, Two, "ab a")
    for index, step in enumerate(result.steps):
        if step.log_z is not None:
            scores = distribution(model, prompt + list(result.tokens[:index]))
            expected = scores[0] if step.token is None else scores[step.token]
            assert step.logprob + step.log_z == pytest.approx(expected, abs=1e-4)


class Even(HashModel):
    """All tokens are equally probable."""

    def logits(self, state: int, matched: int) -> Any:
        return np.zeros(self.vocabulary.size, dtype=np.float32)


def test_of_equally_probable_ones_the_first_tokens_win() -> None:
    """Of the quotations with the fewest tokens, the one with the lowest ids wins."""
    vocabulary = Vocabulary([b"", b"b", b"a", *(bytes([byte]) for byte in range(256) if byte not in b"ab")], eos=[0])
    run = run_of(Even(vocabulary), str, "a b", evidence="exact")
    assert run.value == "b"
    assert run.evidence[0].logprob == pytest.approx(-2 * math.log(vocabulary.size))
    assert run_of(Even(vocabulary), One, "a b", evidence="exact").value.a == "b"


def never(value: str) -> str:
    if value in ("a", "b"):
        raise ValueError("is one letter")
    return value


class Longer(BaseModel):
    a: Annotated[str, AfterValidator(never)]


class Unlike(BaseModel):
    a: str
    b: str

    @model_validator(mode="after")
    def differ(self) -> Unlike:
        if self.a == self.b:
            raise ValueError("are equal")
        return self


@pytest.mark.parametrize("seed", range(10))
def test_what_a_check_refuses_is_passed_over(vocabulary: Vocabulary, seed: int) -> None:
    """The next one is the most probable quotation that was not refused, in any spelling."""
    model = Sharp(vocabulary, seed=seed)
    document = "a b"
    run = run_of(model, Longer, document, evidence="exact")
    outcome = run.outcomes[0]
    refused = {violation.text for violation in outcome.violations}
    assert refused <= {'"a"', '"b"'}
    assert len(refused) == len(outcome.violations)
    ((_, places),) = places_of(outcome)
    bests = []
    for before, begins, _ in places:
        every = all_quotations(model, prompt_of(model, Longer, document), before, begins, outputs_of(One, document))
        bests.append(
            max(
                score for (_, data), score in every.items() if not any(data.endswith(text.encode()) for text in refused)
            )
        )
    assert any(run.evidence[0].logprob == pytest.approx(best, abs=1e-5) for best in bests)


@pytest.mark.parametrize("seed", range(12))
def test_checks_of_the_whole_are_met_too(vocabulary: Vocabulary, seed: int) -> None:
    model = Sharp(vocabulary, seed=seed)
    run = run_of(model, Unlike, "ab", evidence="exact", tries=200)
    assert run.value.a != run.value.b
    assert [held.text for held in run.evidence] == [run.value.a, run.value.b]
    assert all(held.logprob is not None for held in run.evidence)


class Impossible(BaseModel):
    a: Annotated[str, AfterValidator(lambda value: 1 / 0 if value == "?" else _refuse())]


def _refuse() -> str:
    raise ValueError("never")


def test_where_all_are_refused_it_says_so(vocabulary: Vocabulary) -> None:
    with pytest.raises(ValidationFailed, match="never"):
        run_of(Sharp(vocabulary), Impossible, "ab", evidence="exact", tries=50)


class Perhaps(BaseModel):
    a: Annotated[str, AfterValidator(lambda value: _refuse())] | None


@pytest.mark.parametrize("seed", range(6))
def test_where_all_are_refused_something_else_may_stand(vocabulary: Vocabulary, seed: int) -> None:
    run = run_of(Sharp(vocabulary, seed=seed), Perhaps, "ab", evidence="exact", tries=50)
    assert run.value == Perhaps(a=None)
    assert run.evidence == ()


def test_events_are_those_of_the_text(vocabulary: Vocabulary) -> None:
    """The streamed text without what is taken back is the text."""
    for seed in range(6):
        text = ""
        events = list(
            extract.stream(
                Unlike, "ab", model=Sharp(vocabulary, seed=seed), evidence="exact", whole_words=False, tries=200
            )
        )
        for event in events:
            if isinstance(event, Retracted):
                text = text[: event.length]
            elif event.kind == "text" and event.written:
                text += event.text
        run = events[-1].run  # type: ignore[union-attr]
        assert text == run.outcomes[0].text


class Mixed(BaseModel):
    kind: Literal["x", "y"]
    note: Annotated[str, Field(min_length=0, max_length=2)]
    other: Literal["none"] | str
    more: dict[str, str] = Field(max_length=1)
    number: int = Field(ge=0, le=9)


@pytest.mark.parametrize("seed", range(6))
def test_other_fields_stand_beside(vocabulary: Vocabulary, seed: int) -> None:
    document = "ab a"
    run = run_of(Sharp(vocabulary, seed=seed), Mixed, document, evidence="exact", sampler=structgen.Multinomial())
    value = run.value
    assert value.note in ("", *parts(document))
    assert value.other in ("none", *parts(document))
    assert all(text in document for text in value.more.values())
    assert all(held.probability is not None and 0 < held.probability <= 1 for held in run.evidence)


def test_a_small_budget_holds(vocabulary: Vocabulary) -> None:
    for budget in range(6, 14):
        model = Sharp(vocabulary, seed=budget)
        run = extract.run(One, "ab a" * 3, model=model, whole_words=False, evidence="exact", max_tokens=budget)
        assert len(run.outcomes[0].result.tokens) <= budget
        text = extract.run(str, "ab a" * 3, model=model, whole_words=False, evidence="exact", max_tokens=budget - 4)
        assert text.value in "ab a" * 3


class Barred(HashModel):
    """Never writes a small b, or nothing at all."""

    barred: bytes = b"b"

    def logits(self, state: int, matched: int) -> Any:
        found = super().logits(state, matched)
        for token, text in enumerate(self.vocabulary.tokens):
            if any(byte in text for byte in self.barred):
                found[token] = -np.inf
        return found


def test_what_the_model_never_writes_is_not_found(vocabulary: Vocabulary) -> None:
    for seed in range(4):
        run = run_of(Barred(vocabulary, seed=seed), One, "b ab", evidence="exact")
        assert run.value.a in ("a", " ", " a")
    nothing = Barred(vocabulary)
    nothing.barred = b"ab "
    with pytest.raises(GenerationError, match="probability zero to every text that is allowed here"):
        run_of(nothing, str, "b ab", evidence="exact")


def test_without_a_stop_it_ends_where_nothing_may_follow() -> None:
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)])
    for seed in range(4):
        run = run_of(Sharp(vocabulary, seed=seed), str, "ab cb", evidence="exact")
        assert "ab cb".endswith(run.value)
        assert run.evidence[0].probability is not None


def test_wrong_calls(vocabulary: Vocabulary) -> None:
    with pytest.raises(LimitExceeded, match="search_limit=1 would be needed"):
        run_of(Even(vocabulary), One, "ab a", evidence="exact", search_limit=1)
    with pytest.raises(ValueError, match="search_limit must be at least 1"):
        run_of(Even(vocabulary), One, "ab a", evidence="exact", search_limit=0)
    with pytest.raises(ValueError, match="evidence is True, False, 'auto' or 'exact'"):
        run_of(Even(vocabulary), One, "ab a", evidence="beam")
    model = remote("http://127.0.0.1:9/v1", model="none", kind="vllm")
    with pytest.raises(ProgramError, match="most probable quotations"):
        run_of(model, One, "ab a", evidence="exact")  # type: ignore[arg-type]
