"""The generation loop on hash models, so that every forward pass is exact and cheap."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from structgen.decode import Chunk, Context, Greedy, Multinomial, Result, Sampler, generate, start_generation
from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import BudgetError, GenerationError, VocabularyError
from structgen.grammar.nodes import (
    ByteClass,
    CharClass,
    Choice,
    Grammar,
    Reference,
    Repeat,
    Rules,
    SpecialToken,
    choice,
    literal,
    sequence,
)
from structgen.models import HashModel

LETTER = ByteClass([(ord("a"), ord("z"))])
DIGIT = ByteClass([(ord("0"), ord("9"))])

RECORD = sequence(
    '{"name": "', Repeat(LETTER, 0, 8).named("name"), '", "12": [', DIGIT.many(0, 4, sep=", "), "], ", '"ab": true}'
)
RECORD_PATTERN = r'\{"name": "[a-z]{0,8}", "12": \[(?:[0-9](?:, [0-9]){0,3})?\], "ab": true\}'

LANGUAGES: list[tuple[Grammar, str]] = [
    (RECORD, RECORD_PATTERN),
    (choice("true", "null", Repeat(DIGIT, 1, 5)), r"true|null|[0-9]{1,5}"),
    (Repeat(choice("ab", "name", '": "'), 2, 9), r'(?:ab|name|": "){2,9}'),
    (sequence(Repeat(LETTER, 3, None), "12"), r"[a-z]{3,}12"),
    (literal('{"name": [true, false]}'), r'\{"name": \[true, false\]\}'),
    (Repeat(CharClass([(0xE9, 0xE9), (0x1F600, 0x1F602)]), 1, 6), "[é😀😁😂]{1,6}"),
]
SAMPLERS: list[Sampler] = [Greedy(), Multinomial(), Multinomial(temperature=0.6, top_k=20, top_p=0.9, min_p=0.01)]


class Spy:
    """A model that counts the calls of its sessions."""

    def __init__(self, model: HashModel, *, spoil: Any = None) -> None:
        self.model = model
        self.vocabulary = model.vocabulary
        self.max_context = model.max_context
        self.name = "spy"
        self.fed: list[list[int]] = []
        self.closed = 0
        self.spoil = spoil

    def encode_prompt(self, prompt: Any, /, *, chat: bool = True) -> list[int]:
        return self.model.encode_prompt(prompt, chat=chat)

    def start(self) -> SpySession:
        return SpySession(self)


class SpySession:
    def __init__(self, spy: Spy) -> None:
        self._spy = spy
        self._session = spy.model.start()

    @property
    def length(self) -> int:
        return self._session.length

    @property
    def forwards(self) -> int:
        return self._session.forwards

    def extend(self, token_ids: Sequence[int], /) -> Any:
        self._spy.fed.append(list(token_ids))
        logits = self._session.extend(token_ids)
        return logits if self._spy.spoil is None else self._spy.spoil(logits)

    def extend_all(self, token_ids: Sequence[int], /) -> Any:
        self._spy.fed.append(list(token_ids))
        rows = self._session.extend_all(token_ids)
        return rows if self._spy.spoil is None else np.stack([self._spy.spoil(row) for row in rows])

    def truncate(self, length: int, /) -> None:
        self._session.truncate(length)

    def fork(self) -> SpySession:
        raise NotImplementedError

    def close(self) -> None:
        self._spy.closed += 1
        self._session.close()


def unconstrained_logprob(model: HashModel, prompt: str, tokens: Sequence[int], *, stopped: bool) -> float:
    """The model's own log-probability of the tokens and, if they were stopped, of any EOS: one pass per token."""
    session = model.start()
    logits = session.extend(model.encode_prompt(prompt))
    total = 0.0
    for token in tokens:
        total += float(logits[token]) - log_sum(logits.tolist())
        logits = session.extend([token])
    if stopped:
        total += log_sum([float(logits[eos]) for eos in model.vocabulary.eos]) - log_sum(logits.tolist())
    return total


def log_sum(values: list[float]) -> float:
    top = max(values)
    return top + math.log(math.fsum(math.exp(value - top) for value in values))


@pytest.fixture(scope="module")
def constraints(json_vocabulary: Vocabulary) -> list[Constraint]:
    return [compile(grammar, json_vocabulary) for grammar, _ in LANGUAGES]


def runs(json_vocabulary: Vocabulary) -> Iterator[tuple[HashModel, Sampler, int]]:
    for seed in range(3):
        for sampler in SAMPLERS:
            yield HashModel(json_vocabulary, seed=seed), sampler, seed


@pytest.mark.parametrize("index", range(len(LANGUAGES)))
def test_outputs_are_members_and_jump_forward_changes_nothing(
    index: int, constraints: list[Constraint], json_vocabulary: Vocabulary
) -> None:
    """Every output matches Python's regex of the language, and is the same token by token without jump-forward."""
    constraint, pattern = constraints[index], LANGUAGES[index][1]
    for model, sampler, seed in runs(json_vocabulary):
        jumped = generate(model, "ab", constraint, max_tokens=80, sampler=sampler, seed=seed)
        plain = generate(model, "ab", constraint, max_tokens=80, sampler=sampler, seed=seed, jump_forward=False)
        assert re.fullmatch(pattern, jumped.text)
        assert jumped.tokens == plain.tokens
        assert json_vocabulary.decode(jumped.tokens).decode() == jumped.text
        assert jumped.logprob == pytest.approx(plain.logprob, abs=1e-9)
        assert jumped.stats.forwards <= plain.stats.forwards
        assert plain.stats.forwards == plain.stats.tokens + (plain.steps[-1].token is None)


@pytest.mark.parametrize("index", range(len(LANGUAGES)))
def test_scores_add_up_to_the_distribution_of_the_model(
    index: int, constraints: list[Constraint], json_vocabulary: Vocabulary
) -> None:
    """``logprob + log_z`` is the unconstrained model's log-probability of the same tokens, forced ones included."""
    for model, sampler, seed in runs(json_vocabulary):
        result = generate(model, "ab", constraints[index], max_tokens=80, sampler=sampler, seed=seed, score_ending=True)
        stopped = result.steps[-1].token is None
        expected = unconstrained_logprob(model, "ab", result.tokens, stopped=stopped)
        assert result.unscored == 0
        assert result.logprob + result.log_z == pytest.approx(expected, abs=1e-6)
        assert all(step.logprob == 0 for step in result.steps if step.forced)
        assert [step.token for step in result.steps] == [*result.tokens, *([None] if stopped else [])]


def test_forced_tokens_cost_no_forward_pass(json_vocabulary: Vocabulary) -> None:
    """Without drafts, forced tokens are fed together with the token before them, and each chosen token costs a pass."""
    spy = Spy(HashModel(json_vocabulary, seed=1))
    result = generate(spy, "a prompt", RECORD, max_tokens=80, drafter=None)
    stats = result.stats
    opening = sum(step.forced for step in result.steps[:3])
    assert opening > 0  # the output begins with a forced run, which has its own pass after the prompt's
    chosen = sum(not step.forced for step in result.steps)
    assert stats.forwards == len(spy.fed) == chosen + 1
    assert stats.forced > 5
    assert [token for ids in spy.fed for token in ids][: stats.prompt_tokens] == spy.encode_prompt("a prompt")
    seen = [token for ids in spy.fed for token in ids][stats.prompt_tokens :]
    assert list(result.tokens[: len(seen)]) == seen
    # The end was never fed: the last chosen token and the forced ones after it (the stop is unscored too).
    assert len(result.tokens) - len(seen) == 1 + (result.unscored - 1) > 1


def test_a_single_word_needs_no_model(json_vocabulary: Vocabulary) -> None:
    """If the language has one string, it is returned without any forward pass, not even over the prompt."""
    spy = Spy(HashModel(json_vocabulary))
    result = generate(spy, "ab", literal('{"name": 12}'))
    assert (result.text, result.finish_reason) == ('{"name": 12}', "stop")
    assert spy.fed == []
    assert (result.log_z, result.logprob, result.unscored) == (0.0, 0.0, result.stats.tokens + 1)
    scored = generate(spy, "a prompt", literal('{"name": 12}'), score_ending=True)
    assert (scored.unscored, scored.stats.forwards) == (0, 2)


@pytest.mark.exhaustive
def test_the_budget_is_always_enough(json_vocabulary: Vocabulary, constraints: list[Constraint]) -> None:
    """From the exact minimum on, every budget gives a complete string within it, greedy and sampled."""
    for constraint, (_, pattern) in zip(constraints, LANGUAGES, strict=True):
        least = constraint.min_tokens()
        for model, sampler, seed in runs(json_vocabulary):
            for budget in (least, least + 1, least + 3):
                result = generate(model, "", constraint, max_tokens=budget, sampler=sampler, seed=seed)
                assert re.fullmatch(pattern, result.text), (pattern, budget, result.text)
                assert result.stats.tokens <= budget


def test_a_budget_below_the_minimum_is_refused_first(
    json_vocabulary: Vocabulary, constraints: list[Constraint]
) -> None:
    """One token less than the minimum is an error with both numbers, before the model is asked."""
    for constraint in constraints:
        spy = Spy(HashModel(json_vocabulary))
        least = constraint.min_tokens()
        with pytest.raises(BudgetError) as caught:
            generate(spy, "ab", constraint, max_tokens=least - 1)
        assert (caught.value.budget, caught.value.needed) == (least - 1, least)
        assert spy.fed == []


def test_the_minimum_is_the_true_one(ab_vocabulary: Vocabulary) -> None:
    """``min_tokens`` is what brute force over all token sequences finds."""
    grammar = sequence(Repeat(choice("ab", "ba"), 2, 3), choice("aaa", "b"))
    constraint = compile(grammar, ab_vocabulary)
    pattern = re.compile(rb"(?:ab|ba){2,3}(?:aaa|b)")
    tokens = sorted({token for token in ab_vocabulary.tokens if token and set(token) <= set(b"ab")})
    reached, count = {b""}, 0
    while not any(pattern.fullmatch(text) for text in reached):
        reached = {text + token for text in reached for token in tokens if len(text + token) <= 9}
        count += 1
    assert constraint.min_tokens() == count
    result = generate(HashModel(ab_vocabulary), "", constraint, max_tokens=count)
    assert pattern.fullmatch(result.data)


def test_finish_reasons(json_vocabulary: Vocabulary) -> None:
    """The reason is ``length`` if the budget ends an output that could go on, ``stop`` if model or grammar ends it."""
    words = Repeat(literal("z"), 1, None)
    eager = HashModel(json_vocabulary, writes="z" * 50)
    cut = generate(eager, "", words, max_tokens=5)
    assert (cut.text, cut.finish_reason) == ("zzzzz", "length")
    assert cut.steps[-1].token is not None
    short = generate(HashModel(json_vocabulary, writes="zz"), "", words, max_tokens=5)
    assert (short.text, short.finish_reason) == ("zz", "stop")
    assert short.steps[-1].token is None
    assert not short.steps[-1].forced
    exact = generate(eager, "", Repeat(literal("z"), 1, 5), max_tokens=5)
    assert (exact.text, exact.finish_reason) == ("zzzzz", "stop")
    assert exact.steps[-1].forced
    groups = Repeat(literal("qwrt"), 0, None)  # four tokens each
    tight = generate(HashModel(json_vocabulary, writes="qwrt" * 9), "", groups, max_tokens=6)
    assert (tight.text, tight.finish_reason, tight.stats.tokens) == ("qwrt", "length", 4)
    assert tight.steps[-1].token is not None


def test_eos_is_not_counted(json_vocabulary: Vocabulary) -> None:
    """An output may fill the whole budget; the empty output fits a budget of zero."""
    empty = generate(HashModel(json_vocabulary), "", Repeat(literal("z"), 0, None), max_tokens=0)
    assert (empty.text, empty.tokens, empty.finish_reason) == ("", (), "length")
    nothing = generate(HashModel(json_vocabulary), "", literal(""), max_tokens=0)
    assert (nothing.text, nothing.finish_reason, nothing.stats.forwards) == ("", "stop", 0)


def test_several_eos_ids_are_one_stop() -> None:
    """The probability of stopping is that of all EOS ids together."""
    vocabulary = Vocabulary([b"", b"", b"a", b"b"], eos=[0, 1])
    model = HashModel(vocabulary)
    grammar = Choice((literal(""), literal("a")))
    for seed in range(20):
        result = generate(model, "b", grammar, sampler=Multinomial(), seed=seed, score_ending=True)
        expected = unconstrained_logprob(model, "b", result.tokens, stopped=True)
        assert result.logprob + result.log_z == pytest.approx(expected, abs=1e-6)


def test_a_vocabulary_without_eos_ends_where_the_grammar_does() -> None:
    """Without an EOS id the output ends where nothing more is allowed, or with the budget."""
    vocabulary = Vocabulary([b"a", b"b", b"ab"])
    model = HashModel(vocabulary)
    assert generate(model, "a", literal("abab")).finish_reason == "stop"
    assert generate(model, "a", Repeat(choice("a", "b"), 0, 6), max_tokens=9).finish_reason == "stop"
    assert generate(model, "a", Repeat(choice("a", "b"), 0, None), max_tokens=9).stats.tokens == 9


@pytest.mark.nightly
def test_sampling_follows_the_projected_distribution() -> None:
    """Outputs occur with the probability of masking and renormalising step by step (chi-squared)."""
    vocabulary = Vocabulary([b"", b"a", b"b", b"ab", b"ba"], eos=[0])
    model = HashModel(vocabulary, seed=5)
    grammar = Repeat(choice("ab", "b"), 0, 2)
    members = {b"", b"ab", b"b", b"abab", b"abb", b"bab", b"bb"}
    prompt = model.encode_prompt("b")
    distribution: dict[tuple[int, ...], float] = {}
    frontier: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while frontier:
        tokens, probability = frontier.pop()
        text = vocabulary.decode(tokens)
        logits = model.start().extend([*prompt, *tokens]).tolist()
        options = [
            token
            for token in range(1, vocabulary.size)
            if any(member.startswith(text + vocabulary.tokens[token]) for member in members)
        ]
        options += [0] if text in members else []
        total = log_sum([logits[token] for token in options])
        for token in options:
            weight = probability * math.exp(logits[token] - total)
            if token == 0:
                distribution[tokens] = weight
            else:
                frontier.append(((*tokens, token), weight))
    assert math.fsum(distribution.values()) == pytest.approx(1)
    constraint = compile(grammar, vocabulary)
    draws = 2_500
    seen = Counter(
        generate(model, "b", constraint, sampler=Multinomial(), seed=seed, jump_forward=bool(seed & 1)).tokens
        for seed in range(draws)
    )
    assert set(seen) <= set(distribution)
    statistic = sum((seen[tokens] - draws * p) ** 2 / (draws * p) for tokens, p in distribution.items())
    # Far beyond the 1 - 1e-6 quantile of chi-squared with so few degrees of freedom (Laurent and Massart 2000).
    freedom = len(distribution) - 1
    assert statistic < freedom + 2 * math.sqrt(freedom * math.log(1e6)) + 2 * math.log(1e6)
    sample = generate(model, "b", constraint, sampler=Multinomial(), seed=1)
    assert sample.logprob == pytest.approx(math.log(distribution[sample.tokens]), abs=1e-6)


def test_chunks_join_to_the_text(json_vocabulary: Vocabulary) -> None:
    """Streamed texts hold whole characters and join to the text; their tokens join to the tokens."""
    grammar = sequence(Repeat(CharClass([(0xE9, 0xE9), (0x1F600, 0x1F60F)]), 3, 9), '"}')
    for seed in range(10):
        chunks: list[Chunk] = []
        result = generate(
            HashModel(json_vocabulary), "", grammar, sampler=Multinomial(), seed=seed, stream=chunks.append
        )
        assert "".join(chunk.text for chunk in chunks) == result.text
        assert "\N{REPLACEMENT CHARACTER}" not in result.text
        assert tuple(token for chunk in chunks for token in chunk.tokens) == result.tokens
        assert sum(len(chunk.tokens) for chunk in chunks if chunk.forced) == result.stats.forced


def test_bytes_that_are_no_text(json_vocabulary: Vocabulary) -> None:
    """A grammar over bytes may end within a character: the data is exact, and the text marks the place."""
    chunks: list[Chunk] = []
    result = generate(HashModel(json_vocabulary), "", literal(b"a\xc3"), stream=chunks.append)
    assert result.data == b"a\xc3"
    assert result.text == "".join(chunk.text for chunk in chunks) == "a\N{REPLACEMENT CHARACTER}"


def test_special_tokens_of_the_grammar() -> None:
    """A special token that the grammar names is generated, adds no text, and does not end the output."""
    vocabulary = Vocabulary([b"", b"", b"a", b"b"], eos=[0], special={1: "<tool>"})
    grammar = sequence(literal("a"), SpecialToken("<tool>"), choice("a", "b").named("name"))
    result = generate(HashModel(vocabulary), "b", grammar)
    assert result.tokens[1] == 1
    assert result.data in (b"aa", b"ab")
    assert result.captures == {"name": result.text[1]}


def test_recursive_grammars_are_closed_within_the_budget(json_vocabulary: Vocabulary) -> None:
    """A model that always opens brackets closes them in time."""
    nested = Rules({"s": choice("x", sequence("[", Reference("s"), "]"))}, Reference("s"))
    constraint = compile(nested, json_vocabulary)
    for budget in range(1, 30):
        result = generate(HashModel(json_vocabulary, writes="[" * 99), "", constraint, max_tokens=budget)
        depth = result.text.index("x")
        assert result.text == "[" * depth + "x" + "]" * depth
        assert result.stats.tokens <= budget


def test_the_context_is_checked_first(json_vocabulary: Vocabulary) -> None:
    """Prompt and budget beyond the context are an error that names the excess, before the model is asked."""
    spy = Spy(HashModel(json_vocabulary, max_context=20))
    prompt = "z" * 15
    with pytest.raises(GenerationError, match=r"by 5 tokens.*max_tokens=5") as caught:
        generate(spy, prompt, Repeat(LETTER, 1, None), max_tokens=10)
    assert caught.value.subject == "model 'spy'"
    with pytest.raises(GenerationError, match="shorten the prompt by at least 1 token"):
        generate(spy, prompt, literal("z" * 6), max_tokens=10)
    assert spy.fed == []
    assert generate(spy, prompt, Repeat(LETTER, 1, None), max_tokens=5).stats.tokens <= 5


def test_constraints_of_other_vocabularies_are_refused(json_vocabulary: Vocabulary) -> None:
    """A constraint works with an equal vocabulary, and with no other."""
    model = HashModel(json_vocabulary)
    other = Vocabulary([b"", b"a", b"b"], eos=[0])
    with pytest.raises(VocabularyError, match="another vocabulary"):
        generate(model, "", compile(literal("ab"), other))
    reference = Vocabulary(list(json_vocabulary.tokens), eos=[0])
    assert generate(model, "", compile(literal("ab"), reference)).text == "ab"


@pytest.mark.parametrize("budget", [-1, 2.5, "7"])
def test_budgets_that_are_no_counts_are_refused(budget: Any, json_vocabulary: Vocabulary) -> None:
    """``max_tokens`` must be a count."""
    with pytest.raises(ValueError, match="max_tokens"):
        generate(HashModel(json_vocabulary), "", literal("a"), max_tokens=budget)


def test_arguments_of_the_wrong_kind_are_refused(json_vocabulary: Vocabulary) -> None:
    """A text is not a grammar, and a drafter is not silently ignored."""
    model = HashModel(json_vocabulary)
    with pytest.raises(TypeError, match="Grammar or a Constraint"):
        generate(model, "", "abc")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"drafter: expected a Drafter.*DraftModel"):
        generate(model, "", literal("a"), drafter=model)  # type: ignore[arg-type]


def test_an_interrupt_leaves_a_clean_note(json_vocabulary: Vocabulary) -> None:
    """Ctrl-C is raised with the output so far in a note, and the model's cache is freed."""
    spy = Spy(HashModel(json_vocabulary))

    def interrupt(chunk: Chunk) -> None:
        if not chunk.forced:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        generate(spy, "", RECORD, stream=interrupt)
    assert spy.closed == 1
    assert re.search(r"""interrupted after \d+ tokens; .*'{"name": """, caught.value.__notes__[0])


def test_sessions_are_closed(json_vocabulary: Vocabulary) -> None:
    """The cache is freed after an output and after an error."""
    spy = Spy(HashModel(json_vocabulary))
    generate(spy, "", RECORD)
    assert spy.closed == 1
    broken = Spy(HashModel(json_vocabulary), spoil=lambda logits: logits * np.nan)
    with pytest.raises(GenerationError, match="NaN"):
        generate(broken, "", RECORD)
    assert broken.closed == 1


def test_logits_of_another_width_are_refused(json_vocabulary: Vocabulary) -> None:
    """A head that is wider than the vocabulary is an error that names both widths."""
    wide = Spy(HashModel(json_vocabulary), spoil=lambda logits: np.append(logits, logits[:3]))
    with pytest.raises(GenerationError, match=f"{json_vocabulary.size + 3} logits"):
        generate(wide, "", RECORD)


def test_a_generation_can_be_iterated(json_vocabulary: Vocabulary) -> None:
    """``start_generation`` yields the chunks one by one, and gives the result only at the end."""
    model = HashModel(json_vocabulary)
    constraint = compile(RECORD, json_vocabulary)
    with Context(model, model.encode_prompt("ab")) as context:
        generation = start_generation(context, constraint, max_tokens=60)
        chunks = iter(generation)
        next(chunks)
        with pytest.raises(GenerationError, match="no result yet"):
            generation.result()
        rest = list(chunks)
        assert rest
        assert generation.result().tokens == generate(model, "ab", constraint, max_tokens=60).tokens


def test_times_and_counts(json_vocabulary: Vocabulary) -> None:
    """Counts agree with the steps, and times are not negative."""
    result: Result = generate(HashModel(json_vocabulary), "ab", RECORD, drafter=None)
    stats = result.stats
    assert stats.tokens == len(result.tokens) == stats.forced + stats.sampled
    assert (stats.drafted, stats.accepted, stats.drafts) == (0, 0, None)
    assert stats.prompt_tokens == len(HashModel(json_vocabulary).encode_prompt("ab"))
    assert min(stats.time_mask_s, stats.time_model_s) > 0
    assert stats.time_other_s >= 0
