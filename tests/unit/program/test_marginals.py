"""Marginals are those of the loop itself, found by enumeration of all its choices."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter, defaultdict
from collections.abc import Generator
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pytest
from pydantic import AfterValidator, BaseModel, Field

from structgen.decode import Multinomial, generate
from structgen.engine import Vocabulary, compile
from structgen.grammar.algebra import select
from structgen.models.toy.hash import HashModel
from structgen.program import program
from structgen.program.answer import Answer, answer_of

TOKENS = [
    *(b'{"', b'"}', b'":', b'": "', b'", "', b'",', b': "', b"true", b"tr", b"false", b"null", b"nu", b"12", b"1,"),
    *(b"1}", b'"a', b'"ab', b"ab", b"ba", b"aa", b'a"', b'b"', b'a", "', b' "', b'": "a', b", ", b'x"', b'", "b"'),
    *(b'": t', b"2, "),
]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary([b"", *(bytes([byte]) for byte in range(256)), *TOKENS], eos=[0])


class TableModel(HashModel):
    """Looks up its logits by all earlier tokens, in a table of normal random numbers."""

    def __init__(self, vocabulary: Vocabulary, seed: int, spread: float = 2) -> None:
        super().__init__(vocabulary)
        self._seed, self._spread, self._rows = seed, spread, dict[tuple[int, ...], Any]()
        self.runs, self.run_tokens = 0, 0

    def row(self, tokens: tuple[int, ...]) -> Any:
        if tokens not in self._rows:
            numbers = np.random.default_rng([self._seed, *tokens]).normal(0, self._spread, self.vocabulary.size)
            self._rows[tokens] = numbers.astype(np.float32)
        return self._rows[tokens]

    def start(self) -> Any:
        return _TableSession(self)

    def extend_many(self, extensions: Any, /) -> list[Any]:
        return [
            each.session.extend_all(each.token_ids) if each.all_positions else each.session.extend(each.token_ids)
            for each in extensions
        ]


class _TableSession:
    def __init__(self, model: TableModel, tokens: tuple[int, ...] = ()) -> None:
        self._model, self.tokens, self.forwards = model, tokens, 0

    @property
    def length(self) -> int:
        return len(self.tokens)

    def extend(self, token_ids: Any, /) -> Any:
        return self.extend_all(token_ids)[-1]

    def extend_all(self, token_ids: Any, /) -> Any:
        self.forwards += 1
        self._model.runs += 1
        self._model.run_tokens += len(token_ids)
        rows = []
        for token in token_ids:
            self.tokens = (*self.tokens, token)
            rows.append(self._model.row(self.tokens))
        return np.stack(rows)

    def truncate(self, length: int, /) -> None:
        self.tokens = self.tokens[:length]

    def fork(self) -> _TableSession:
        return _TableSession(self._model, self.tokens)

    def close(self) -> None:
        self.tokens = ()


class Output(NamedTuple):
    tokens: tuple[int, ...]
    data: bytes
    probability: float
    choices: list[int]


PROMPT = "Choose: "


class _Told:
    """Takes the given choices, then the first; records the number of options and the probability of each choice."""

    lossless = True

    def __init__(self, told: list[int]) -> None:
        self._told = told
        self.choices: list[tuple[int, int]] = []
        self.probability = 1.0

    def draw(self, log_p: Any, generator: Any, /) -> int:
        at = len(self.choices)
        taken = self._told[at] if at < len(self._told) else 0
        self.choices.append((taken, len(log_p)))
        self.probability *= math.exp(log_p[taken])
        return taken


def all_outputs(model: TableModel, kind: Any, **settings: Any) -> list[Output]:
    """Every output of the loop without drafts, with its probability, by enumeration of all choices."""
    answer, told, found = answer_of(kind), list[int](), []
    constraint = compile(answer.grammar, model.vocabulary)
    while True:
        sampler = _Told(told)
        result = generate(model, PROMPT, constraint, sampler=sampler, chat=False, drafter=None, **settings)
        taken = [choice for choice, _ in sampler.choices]
        found.append(Output(result.tokens, result.data, sampler.probability, taken))
        choices = sampler.choices
        while choices and choices[-1][0] + 1 == choices[-1][1]:
            choices.pop()
        if not choices:
            return found
        told = [*taken[: len(choices) - 1], choices[-1][0] + 1]


def whole_value(answer: Answer, data: bytes) -> Any:
    return answer.value(data.decode()) if answer.form == "text" else json.loads(data)


def value_at(value: Any, path: Any) -> Any:
    for part in path:
        value = value[part]
    return value


def tokens_before(output: Output, vocabulary: Vocabulary, start: int) -> tuple[int, ...]:
    """The tokens before the one in which the byte at ``start`` lies."""
    ends = list(itertools.accumulate(len(vocabulary.tokens[token]) for token in output.tokens))
    return output.tokens[: sum(end <= start for end in ends)]


class Level(Enum):
    LOW = "ab"
    HIGH = "aab"


class Flags(BaseModel):
    a: Literal["ab", "aab", "b"]
    b: bool


class Counts(BaseModel):
    n: Literal[1, 2, 12, 121]
    a: Literal["a", "b"] | None


class Near(BaseModel):
    """The end of a number and what follows it share tokens."""

    n: int = Field(ge=8, le=12)
    m: Literal["ab", "aab"]


class Short(BaseModel):
    a: Literal["aab", "aaba", "aabb", "x"]


KINDS: list[Any] = [
    Literal["ab", "aab", "abab", "ba", "b"],
    Level,
    bool,
    Literal[1, 12, 121, 2] | None,
    Literal["aaab", "aaba", "aaa"],
    Flags,
    Counts,
    Short,
    tuple[bool, Literal["a", "ab"]],
    Near,
    Annotated[list[Literal[1, 12]], Field(max_length=2)],
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("kind", "seed"), itertools.product(KINDS, range(2)))
def test_they_are_those_of_all_outputs(vocabulary: Vocabulary, kind: Any, seed: int) -> None:
    model = TableModel(vocabulary, seed)
    outputs = all_outputs(model, kind)
    answer = answer_of(kind)
    values = [whole_value(answer, each.data) for each in outputs]
    assert math.fsum(each.probability for each in outputs) == pytest.approx(1)

    @program(chat=False, marginals=True)
    def asked() -> Generator[Any, Any, None]:
        yield PROMPT
        yield kind

    for output in random.Random(seed).sample(outputs, min(len(outputs), 4)):
        run = asked.run(model=model, sampler=_Told(output.choices))
        assert run.text == PROMPT + output.data.decode()
        for score in run.fields.values():
            if score.marginals is None:
                assert output.data[score.start : score.start + 1] in (b"{", b"[")
                continue
            assert math.fsum(score.marginals.values()) == pytest.approx(1, abs=1e-12)
            assert list(score.marginals.values()) == sorted(score.marginals.values(), reverse=True)
            before = tokens_before(output, vocabulary, score.start)
            masses: dict[Any, float] = defaultdict(float)
            for other, value in zip(outputs, values, strict=True):
                is_end = other.data[score.start : score.start + 1] == b"]"  # where an array ends, there is no item
                is_here = other.data.startswith(output.data[: score.start]) and not is_end
                if other.tokens[: len(before)] == before and is_here:
                    masses[value_at(value, score.path)] += other.probability
            total = math.fsum(masses.values())
            assert set(masses) == set(score.marginals)
            for value, mass in score.marginals.items():
                assert mass == pytest.approx(masses[value] / total, abs=1e-9)


@pytest.mark.parametrize("budget", range(1, 6))
def test_they_keep_to_the_budget(vocabulary: Vocabulary, budget: int) -> None:
    """What the remaining tokens cannot spell has no probability."""
    kind, model = Literal["ab", "aabab", "b"], TableModel(vocabulary, 3)

    @program(chat=False, marginals=True, max_tokens=budget)
    def asked() -> Generator[Any, Any, None]:
        yield PROMPT
        yield kind

    masses: dict[str, float] = defaultdict(float)
    for output in all_outputs(model, kind, max_tokens=budget):
        masses[output.data.decode()] += output.probability
    found = asked.run(model=model).fields[""].marginals
    assert found == pytest.approx({value: masses[value] for value in ("ab", "aabab", "b")}, abs=1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_masks_made_by_hand_agree(seed: int) -> None:
    """Without matcher or loop, a token is allowed iff some text begins with the written text and the token."""
    rng = random.Random(seed)
    words = [b"".join(rng.choices([b"a", b"b"], k=rng.randint(1, 4))) for _ in range(5)]
    # With every prefix of a text there is always a choice; the loop takes forced tokens.
    texts = sorted({word[:size] for word in (b"a", b"b", *words) for size in range(1, len(word) + 1)})
    vocabulary = Vocabulary([b"", b"a", b"b", b"ab", b"ba", b"aa", b"bab"], eos=[0])
    model = TableModel(vocabulary, seed)
    masses: dict[bytes, float] = defaultdict(float)
    start = tuple(model.encode_prompt("ab", chat=False))
    work: list[tuple[tuple[int, ...], bytes, float]] = [(start, b"", 1.0)]
    while work:
        tokens, written, probability = work.pop()
        allowed = [
            token
            for token, text in enumerate(vocabulary.tokens)
            if (written in texts if token == 0 else any(each.startswith(written + text) for each in texts))
        ]
        weights = np.exp(model.row(tokens)[allowed].astype(np.float64))
        for token, weight in zip(allowed, weights / weights.sum(), strict=True):
            if token == 0:
                masses[written] += probability * weight
            else:
                work.append(((*tokens, token), written + vocabulary.tokens[token], probability * weight))

    @program(chat=False, marginals=True)
    def asked() -> Generator[Any, Any, None]:
        yield "ab"
        yield select([each.decode() for each in texts])

    found = asked.run(model=model).fields[""].marginals
    assert found == pytest.approx({each.decode(): masses[each] for each in texts}, abs=1e-9)


@pytest.mark.nightly
def test_samples_have_these_frequencies(vocabulary: Vocabulary) -> None:
    """Of 2,000 draws no frequency is off by more than 6 standard errors (2e-9 for each value)."""
    kind, model, count = Literal["ab", "aab", "abab", "ba", "b"], TableModel(vocabulary, 5), 2_000

    @program(chat=False, sampler=Multinomial())
    def asked() -> Generator[Any, Any, None]:
        yield PROMPT
        yield kind

    expected = asked.run(model=model, marginals=True).fields[""].marginals
    constraint = compile(answer_of(kind).grammar, vocabulary)
    sampled = Counter(
        generate(model, PROMPT, constraint, sampler=Multinomial(), seed=seed, chat=False).text for seed in range(count)
    )
    for value, probability in expected.items():
        error = math.sqrt(probability * (1 - probability) / count)
        assert abs(sampled[value] / count - probability) <= 6 * error


def test_what_was_refused_counts_too(vocabulary: Vocabulary) -> None:
    """They are the model's under the grammar, whatever the checks say."""

    def not_ab(value: str) -> str:
        if value == "ab":
            raise ValueError("not that one")
        return value

    class Checked(BaseModel):
        a: Annotated[Literal["ab", "aab", "b"], AfterValidator(not_ab)]

    class Free(BaseModel):
        a: Literal["ab", "aab", "b"]

    def found(kind: Any, **settings: Any) -> Any:
        @program(chat=False, marginals=True)
        def asked() -> Generator[Any, Any, None]:
            yield PROMPT
            yield kind

        return asked.run(**settings).fields["a"].marginals

    for seed in range(4):
        model = TableModel(vocabulary, seed)
        assert found(Checked, model=model, tries=30) == pytest.approx(found(Free, model=model))


def test_an_array_that_might_have_ended_is_no_value_of_its_first_item(vocabulary: Vocabulary) -> None:
    """The probabilities are given that there is an item; JSON of the end alone is none."""

    @program(chat=False, marginals=True)
    def asked() -> Generator[Any, Any, None]:
        yield PROMPT
        yield Annotated[list[Literal[1, 12]], Field(max_length=1)]

    for seed in range(9):
        fields = asked.run(model=TableModel(vocabulary, seed)).fields
        if "[0]" in fields:
            assert set(fields["[0]"].marginals) == {1, 12}
            assert math.fsum(fields["[0]"].marginals.values()) == pytest.approx(1)
            return
    pytest.fail("no seed writes an item")


def test_fields_with_many_values_have_none_and_cost_nothing(vocabulary: Vocabulary) -> None:
    class Wide(BaseModel):
        name: str = Field(max_length=5)
        number: int = Field(ge=0, le=500)
        day: int = Field(ge=1, le=31)

    @program(chat=False, marginals=True)
    def asked() -> Generator[Any, Any, None]:
        yield PROMPT
        yield Wide

    run = asked.run(model=HashModel(vocabulary))
    assert {name: score.marginals is None for name, score in run.fields.items()} == {
        "name": True, "number": True, "day": False, "": True
    }  # fmt: skip
    assert math.fsum(run.fields["day"].marginals.values()) == pytest.approx(1)
    assert len(run.trace["answers"][0]["fields"][2]["marginals"]) == 31
    json.dumps(run.trace)
    plain = asked.run(model=HashModel(vocabulary), marginals=False)
    assert plain.text == run.text
    assert plain.fields["day"].marginals is None


def test_many_items_in_one_pass(vocabulary: Vocabulary) -> None:
    @program(describe=False, chat=False, marginals=True)
    def asked(text: str) -> Literal["ab", "aab", "b"]:
        """Choose: {text}"""

    model = TableModel(vocabulary, 2)
    items = ["a", "b", "ab", "aa"]
    together = asked.map(items, model=model, batch_size=3)
    for item, text in zip(together, items, strict=True):
        assert item.run is not None
        assert item.run.fields[""].marginals == pytest.approx(asked.run(text, model=model).fields[""].marginals)


def test_too_many_spellings_have_no_answer(vocabulary: Vocabulary) -> None:
    """A long common prefix has more spellings than are searched."""
    model = TableModel(vocabulary, 1)
    long = "ab" * 40

    @program(chat=False, marginals=True)
    def asked() -> Generator[Any, Any, None]:
        yield PROMPT
        yield select([long[:size] for size in range(1, 81)])

    assert asked.run(model=model).fields[""].marginals is None


def marginals_with_work(model: TableModel, texts: list[str]) -> tuple[dict[str, float], int, int]:
    """The probabilities, with the sequences and tokens that the model ran for them alone."""
    work = []

    @program(chat=False)
    def asked() -> Generator[Any, Any, None]:
        yield PROMPT
        yield select(texts)

    for marginals in (False, True):
        before = model.runs, model.run_tokens
        found = asked.run(model=model, marginals=marginals).fields[""].marginals
        work.append((model.runs - before[0], model.run_tokens - before[1]))
    (runs, tokens), (all_runs, all_tokens) = work
    return found, all_runs - runs, all_tokens - tokens


def test_spellings_go_on_from_others_and_end_where_they_are_negligible(vocabulary: Vocabulary) -> None:
    """Quotations that begin alike have many spellings: few tokens of each are run, and the improbable ones are not."""
    texts = ["abababababab"[:size] for size in range(1, 13)]
    found, runs, tokens = marginals_with_work(TableModel(vocabulary, 4), texts)
    assert runs > 200
    assert tokens < 3 * runs  # from the start of the answer each would run eight
    assert math.fsum(found.values()) == pytest.approx(1, abs=1e-12)

    peaked = TableModel(vocabulary, 4, spread=20)
    masses: dict[str, float] = defaultdict(float)
    outputs = all_outputs(peaked, select(texts))
    for output in outputs:
        masses[output.data.decode()] += output.probability
    found, fewer, _ = marginals_with_work(peaked, texts)
    assert fewer < runs / 2
    assert found == pytest.approx({text: masses[text] for text in texts}, rel=0, abs=1e-12)
