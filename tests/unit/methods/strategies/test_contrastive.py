"""Two prompts side by side, against two independent sessions."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jsonschema
import numpy as np
import pytest
from numpy.typing import NDArray

from structgen.decode import Context, Multinomial, generate, start_generation
from structgen.decode.sampling import AWRS, SMC, sample
from structgen.engine import Vocabulary, compile
from structgen.errors import GenerationError
from structgen.frontends.json_schema import json_schema
from structgen.grammar.nodes import ByteClass, Repeat, choice
from structgen.methods.strategies.contrastive import Contrastive
from structgen.models import HashModel, PackedModel
from structgen.models.protocol import LanguageModel

LETTER = ByteClass([(ord("a"), ord("z"))])
PROMPTS = [
    ("a long context, and a question", "a question"),
    ("ab", "a much longer prompt of the other kind"),
    ("x", "y"),
]


class Plain:
    """A model that runs one sequence at a time, and fails on request."""

    def __init__(self, model: HashModel) -> None:
        self.model = model
        self.vocabulary = model.vocabulary
        self.max_context = model.max_context
        self.name = "plain"
        self.calls = 0
        self.fails_at = -1

    def encode_prompt(self, prompt: Any, /, *, chat: bool = True) -> list[int]:
        text = f"<{prompt}>" if chat and isinstance(prompt, str) else prompt
        return self.model.encode_prompt(text, chat=chat)

    def start(self) -> PlainSession:
        return PlainSession(self, self.model.start())


class PlainSession:
    def __init__(self, model: Plain, inner: Any) -> None:
        self._model = model
        self._inner = inner

    @property
    def length(self) -> int:
        return int(self._inner.length)

    @property
    def forwards(self) -> int:
        return int(self._inner.forwards)

    def _count(self) -> None:
        self._model.calls += 1
        if self._model.calls == self._model.fails_at:
            raise GenerationError("plain", "it fails now")

    def extend(self, token_ids: Sequence[int], /) -> Any:
        self._count()
        return self._inner.extend(token_ids)

    def extend_all(self, token_ids: Sequence[int], /) -> Any:
        self._count()
        return self._inner.extend_all(token_ids)

    def truncate(self, length: int, /) -> None:
        self._inner.truncate(length)

    def fork(self) -> PlainSession:
        return PlainSession(self._model, self._inner.fork())

    def close(self) -> None:
        self._inner.close()


def fresh(model: LanguageModel, tokens: Sequence[int]) -> NDArray[np.float64]:
    """The logits of a new session after tokens."""
    return model.start().extend(tokens).astype(np.float64)


def log_distribution(logits: NDArray[Any]) -> NDArray[np.float64]:
    values = logits.astype(np.float64)
    values = values - values.max()
    return values - math.log(math.fsum(np.exp(values).tolist()))


def by_hand(model: LanguageModel, prompt: str, other: str, output: Sequence[int], gain: float, alpha: float) -> Any:
    """The mixed distribution from two sessions, with log-probabilities in place of logits."""
    with_prompt = log_distribution(fresh(model, [*model.encode_prompt(prompt), *output]))
    with_other = log_distribution(fresh(model, [*model.encode_prompt(other), *output]))
    return log_distribution(gain * with_prompt - alpha * with_other)


def models(vocabulary: Vocabulary) -> list[LanguageModel]:
    return [HashModel(vocabulary, seed=3), Plain(HashModel(vocabulary, seed=3))]


@pytest.mark.parametrize(("prompt", "other"), PROMPTS)
@pytest.mark.parametrize("packed", [True, False])
def test_the_distribution_is_the_mixture_of_two_sessions(
    prompt: str, other: str, packed: bool, json_vocabulary: Vocabulary
) -> None:
    """After any output the distribution is the formula's, computed from two sessions of the inner model."""
    model = models(json_vocabulary)[0 if packed else 1]
    forms = [
        (Contrastive(model, without=other), 1.5, 0.5),
        (Contrastive(model, without=other, alpha=1.0), 2.0, 1.0),
        (Contrastive(model, without=other, alpha=0.7, gain=0.9), 0.9, 0.7),
        (Contrastive.instructive(model, noisy=other), 1.0, 0.3),
        (Contrastive.selective(model, lame=other, uncertain_below=1.0, plausibility=None), 1.0, 1.0),
    ]
    for contrastive, gain, alpha in forms:
        session, output = contrastive.start(), [7, 70, 99, 12]
        ids = contrastive.encode_prompt(prompt)
        rows = [session.extend(ids), *(session.extend([token]) for token in output)]
        for length, row in enumerate(rows):
            expected = by_hand(model, prompt, other, output[:length], gain, alpha)
            assert log_distribution(row) == pytest.approx(expected, abs=1e-5)
        # Power: without the other prompt, or with the mixture inverted, the distribution would be different.
        assert (
            np.abs(log_distribution(rows[0]) - log_distribution(fresh(model, model.encode_prompt(prompt)))).max() > 0.1
        )
        assert np.abs(log_distribution(rows[0]) - by_hand(model, other, prompt, [], gain, alpha)).max() > 0.1


@pytest.mark.exhaustive
@pytest.mark.parametrize(("prompt", "other"), PROMPTS)
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_what_a_session_says_depends_on_its_ids_alone(
    prompt: str, other: str, packed: bool, seed: int, json_vocabulary: Vocabulary
) -> None:
    """After random extensions, truncations and forks, every answer is that of a fresh session."""
    model = models(json_vocabulary)[0 if packed else 1]
    contrastive = Contrastive(model, without=other)
    random = np.random.default_rng(seed)
    prompt_ids = contrastive.encode_prompt(prompt)

    def said(ids: Sequence[int]) -> NDArray[np.float32]:
        return contrastive.start().extend(ids)

    sessions: list[tuple[Any, list[int]]] = [(contrastive.start(), [])]
    checked = 0
    for _ in range(40):
        index = int(random.integers(len(sessions)))
        session, ids = sessions[index]
        action = random.choice(["extend", "extend_all", "truncate", "fork"])
        if action == "fork" and len(sessions) < 4:
            sessions.append((session.fork(), list(ids)))
        elif action == "truncate":
            length = int(random.integers(len(ids) + 1))
            session.truncate(length)
            del ids[length:]
        else:
            count = int(random.integers(1, 8))
            more = prompt_ids[len(ids) : len(ids) + count]
            if not more:  # any tokens, or a later piece that was encoded, whose first ids are not tokens
                piece = contrastive.encode_prompt("more")[:count]
                more = piece if random.random() < 0.4 else random.integers(1, 300, size=count).tolist()
            before = list(ids)
            ids += more
            if action == "extend":
                assert session.extend(more) == pytest.approx(said(ids), abs=1e-6)
            else:
                rows = session.extend_all(more)
                assert rows.shape == (len(more), json_vocabulary.size)
                for row, length in zip(rows, range(len(before) + 1, len(ids) + 1), strict=True):
                    assert row == pytest.approx(said(ids[:length]), abs=1e-6)
            checked += 1
        assert session.length == len(ids)
    assert checked > 5


def test_both_streams_share_a_pass_where_they_can(json_vocabulary: Vocabulary) -> None:
    """With a packing model, a step is one pass for both streams of all sessions; otherwise it is two passes."""
    packed, plain = (Contrastive(model, without="other") for model in models(json_vocabulary))
    assert isinstance(packed, PackedModel)
    assert not isinstance(plain, PackedModel)
    for contrastive, passes in ((packed, 1), (plain, 2)):
        session = contrastive.start()
        session.extend(contrastive.encode_prompt("a prompt"))
        assert session.forwards == passes
        session.extend([5])
        assert session.forwards == 2 * passes
        assert session.fork().forwards == 0
        session.close()
        assert session.length == 0
    assert isinstance(plain.model, Plain)
    assert plain.model.calls == 4


def test_extend_many_is_what_each_session_says_alone(json_vocabulary: Vocabulary) -> None:
    """Sessions at different places, one of them within its prompt, answer as if they were alone."""
    from structgen.models.protocol import Extension
    from structgen.models.protocol.tree import TokenTree

    contrastive = Contrastive(HashModel(json_vocabulary, seed=3), without="the other prompt")
    prompt = contrastive.encode_prompt("a prompt")
    histories = [(prompt, [4, 5]), (prompt[:3], prompt[3:]), ([], [*prompt, 8, 9]), ([], prompt[:4])]
    sessions = [contrastive.start() for _ in histories]
    for session, (before, _) in zip(sessions, histories, strict=True):
        if before:
            session.extend(before)
    extensions = [
        Extension(session, more, all_positions=index % 2 == 0)
        for index, (session, (_, more)) in enumerate(zip(sessions, histories, strict=True))
    ]
    answers = contrastive.extend_many(extensions)
    for answer, (before, more), extension in zip(answers, histories, extensions, strict=True):
        lengths = range(1, len(more) + 1) if extension.all_positions else [len(more)]
        rows = answer if extension.all_positions else answer[None]
        for row, length in zip(rows, lengths, strict=True):
            assert row == pytest.approx(contrastive.start().extend([*before, *more[:length]]), abs=1e-6)
    with pytest.raises(GenerationError, match="not its own"):
        contrastive.extend_many([Extension(contrastive.model.start(), [1], all_positions=False)])
    lengths_before = [session.length for session in sessions]
    with pytest.raises(GenerationError, match="its sessions do not run trees"):
        contrastive.extend_many([Extension(session, [4], False, TokenTree([1], [-1])) for session in sessions])
    assert [session.length for session in sessions] == lengths_before


@pytest.mark.parametrize("fails_at", [1, 2, 3, 4])
def test_a_pass_that_fails_leaves_no_trace(fails_at: int, json_vocabulary: Vocabulary) -> None:
    """If one of the two streams fails, the sequence is unchanged, and goes on as if nothing had happened."""
    model = Plain(HashModel(json_vocabulary, seed=3))
    contrastive = Contrastive(model, without="other")
    ids = contrastive.encode_prompt("a prompt")
    session = contrastive.start()
    model.fails_at = fails_at
    for more in (ids, [5, 6]):
        try:
            session.extend(more)
        except GenerationError:
            length = session.length
            assert length in (0, len(ids))
            session.extend(more)
    model.fails_at = -1
    assert session.length == len(ids) + 2
    assert session.extend([7]) == pytest.approx(contrastive.start().extend([*ids, 5, 6, 7]), abs=1e-6)


def test_only_plausible_tokens_are_contrasted(json_vocabulary: Vocabulary) -> None:
    """Tokens below a share of the best come after all others, in the model's own order and proportion."""
    model = HashModel(json_vocabulary, seed=3)
    share = 0.2
    contrastive = Contrastive(model, without="other", alpha=0.8, plausibility=share)
    distribution = log_distribution(contrastive.start().extend(contrastive.encode_prompt("a prompt")))
    main = log_distribution(fresh(model, model.encode_prompt("a prompt")))
    other = log_distribution(fresh(model, model.encode_prompt("other")))
    plausible = np.exp(main) >= share * np.exp(main).max()
    assert 5 < plausible.sum() < len(main) / 2
    expected = log_distribution((1.8 * main - 0.8 * other)[plausible])
    assert distribution[plausible] == pytest.approx(expected, abs=1e-5)
    assert np.exp(distribution[~plausible]).sum() < 1e-30
    assert distribution[~plausible].max() < distribution[plausible].min()
    assert log_distribution(distribution[~plausible]) == pytest.approx(log_distribution(main[~plausible]), abs=1e-4)


def test_a_grammar_may_allow_implausible_tokens_alone(json_vocabulary: Vocabulary) -> None:
    """Where the mask leaves no plausible token, the model's own distribution decides, and there is no error."""
    model = HashModel(json_vocabulary, seed=3, writes="zzz")  # any other token is implausible
    contrastive = Contrastive(model, without="other", plausibility=0.5)
    grammar = choice("a", "b", "c", "d")
    result = generate(contrastive, "a prompt", grammar)
    main = fresh(model, model.encode_prompt("a prompt"))
    assert result.text == max("abcd", key=lambda letter: main[json_vocabulary.tokenize(letter)[0]])


def test_contrast_only_where_the_model_is_uncertain(json_vocabulary: Vocabulary) -> None:
    """The threshold is compared with the standard deviation of the probabilities, as a share of its maximum."""
    model = HashModel(json_vocabulary, seed=3)
    main = fresh(model, model.encode_prompt("a prompt"))
    p = np.exp(log_distribution(main))
    size = len(p)
    deviation = math.sqrt(math.fsum((p - 1 / size) ** 2) / size)
    share = deviation / math.sqrt((size - 1) / size**2)
    assert 0.01 < share < 0.5
    for threshold, is_contrasted in ((share - 1e-6, False), (share + 1e-6, True)):
        contrastive = Contrastive.selective(model, lame="other", uncertain_below=threshold, plausibility=None)
        said = contrastive.start().extend(contrastive.encode_prompt("a prompt"))
        assert bool(np.abs(said - main).max() > 0.1) is is_contrasted


def test_impossible_tokens_stay_impossible(json_vocabulary: Vocabulary) -> None:
    """Minus infinity with the prompt stays; minus infinity with only the other prompt gives no infinite score."""
    contrastive = Contrastive(HashModel(json_vocabulary), without="other", plausibility=0.1)
    main = np.array([0.0, -1.0, -np.inf, -0.5], dtype=np.float32)
    other = np.array([0.0, -np.inf, -np.inf, -3.0], dtype=np.float32)
    mixed = contrastive.mixed(main, other)
    assert mixed[2] == -np.inf
    assert mixed[[0, 1, 3]] == pytest.approx([0.0, 1.5 * -1.0 + 1.5, 1.5 * -0.5 + 1.5])


@pytest.mark.nightly
def test_the_sampled_distribution_is_the_contrasted_one(ab_vocabulary: Vocabulary) -> None:
    """Sampled tokens have the masked contrasted distribution (alpha = 1e-6); the model's own is rejected.

    4,000 draws over 14 outcomes; the G statistic is chi-square with 13 degrees of freedom, whose quantile at 1 - 1e-6
    is 53.6 (Wilson and Hilferty's formula gives 53.5).
    """
    grammar = Repeat(choice("a", "b"), 1, 3)
    model = HashModel(ab_vocabulary, seed=5)
    contrastive = Contrastive(model, without="bbb", alpha=1.0)
    constraint = compile(grammar, ab_vocabulary)
    draws = 4_000
    counts = Counter(
        generate(contrastive, "aab", constraint, max_tokens=1, sampler=Multinomial(), seed=seed).tokens
        for seed in range(draws)
    )
    words = [token for token, data in enumerate(ab_vocabulary.tokens) if re.fullmatch(b"[ab]{1,3}", data)]

    def statistic(distribution: NDArray[np.float64]) -> float:
        chances = np.exp(log_distribution(distribution[words]))
        return 2 * sum(
            counts[(word,)] * math.log(counts[(word,)] / (draws * chance))
            for word, chance in zip(words, chances, strict=True)
            if counts[(word,)]
        )

    assert len(words) == 14
    assert sum(counts.values()) == draws
    assert statistic(by_hand(model, "aab", "bbb", [], 2.0, 1.0)) < 53.6
    assert statistic(log_distribution(fresh(model, model.encode_prompt("aab")))) > 200


def test_smc_estimates_the_contrasted_evidence(json_vocabulary: Vocabulary) -> None:
    """For two words of one token each, strata keep the estimate within 2 / n of the explicit sum."""
    model = HashModel(json_vocabulary, seed=9)
    contrastive = Contrastive(model, without="other", alpha=1.0)
    count = 1_000
    grammar = choice("true", "12")
    tokens = [json_vocabulary.tokenize(word)[0] for word in ("true", "12")]
    samples = sample(
        contrastive, "a prompt", grammar, sampler=SMC(count, proposal=AWRS(), ess_threshold=0), max_tokens=1, seed=1
    )
    expected = 0.0
    plain = 0.0
    for token in tokens:
        first, then = (by_hand(model, "a prompt", "other", output, 2.0, 1.0) for output in ([], [token]))
        expected += math.exp(first[token] + then[json_vocabulary.eos[0]])
        base = model.encode_prompt("a prompt")
        plain += math.exp(
            log_distribution(fresh(model, base))[token]
            + log_distribution(fresh(model, [*base, token]))[json_vocabulary.eos[0]]
        )
    assert samples.log_evidence is not None
    largest = max(math.exp(by_hand(model, "a prompt", "other", [t], 2.0, 1.0)[json_vocabulary.eos[0]]) for t in tokens)
    mass = sum(math.exp(by_hand(model, "a prompt", "other", [], 2.0, 1.0)[t]) for t in tokens)
    bound = 2 * mass * largest / count + 1e-9
    assert abs(math.exp(samples.log_evidence) - expected) <= bound
    assert abs(plain - expected) > 10 * bound


def test_outputs_are_members_and_jump_forward_changes_nothing(json_vocabulary: Vocabulary) -> None:
    """A schema's outputs are valid for an independent validator; forced tokens reach both streams."""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "ok": {"type": "boolean"}},
        "required": ["name", "ok"],
        "additionalProperties": False,
    }
    constraint = compile(json_schema(schema), json_vocabulary)
    for seed in range(6):
        model = HashModel(json_vocabulary, seed=seed)
        contrastive = Contrastive(model, without="without the context", plausibility=0.05)
        results = [
            generate(
                contrastive, "context", constraint, max_tokens=60, sampler=Multinomial(), seed=seed, jump_forward=jump
            )
            for jump in (True, False)
        ]
        jsonschema.validate(json.loads(results[0].text), schema)
        assert results[0].tokens == results[1].tokens


def test_scores_are_those_of_the_contrasted_distribution(json_vocabulary: Vocabulary) -> None:
    """``logprob + log_z`` is the sum of the contrasted distribution's log-probabilities, by hand."""
    model = HashModel(json_vocabulary, seed=4)
    contrastive = Contrastive(model, without="other")
    result = generate(contrastive, "a prompt", Repeat(LETTER, 3, 6), max_tokens=20, score_ending=True)
    total = 0.0
    for length, token in enumerate(result.tokens):
        total += by_hand(model, "a prompt", "other", result.tokens[:length], 1.5, 0.5)[token]
    if result.steps[-1].token is None:
        total += by_hand(model, "a prompt", "other", result.tokens, 1.5, 0.5)[json_vocabulary.eos[0]]
    assert result.logprob + result.log_z == pytest.approx(total, abs=1e-3)


def test_chat_and_text_prompts_are_not_mixed_up(json_vocabulary: Vocabulary) -> None:
    """The other prompt is encoded like the prompt: by the chat template, or as plain text."""
    model = Plain(HashModel(json_vocabulary, seed=3))
    contrastive = Contrastive(model, without="other")
    for chat in (True, False):
        said = contrastive.start().extend(contrastive.encode_prompt("a prompt", chat=chat))
        main, other = (fresh(model, model.encode_prompt(text, chat=chat)) for text in ("a prompt", "other"))
        assert log_distribution(said) == pytest.approx(log_distribution(1.5 * main - 0.5 * other), abs=1e-5)


def test_later_pieces_follow_both_prompts(json_vocabulary: Vocabulary) -> None:
    """The text that a conversation appends later goes to both streams."""
    model = HashModel(json_vocabulary, seed=3)
    contrastive = Contrastive(model, without="other")
    with Context(contrastive, contrastive.encode_prompt("a prompt")) as context:
        context.append([9, 10])
        context.read()
        context.append(contrastive.encode_prompt("more", chat=False))
        context.prepare()
        said = context.session.extend(context.unseen)
    output = [9, 10, *model.encode_prompt("more")]
    assert log_distribution(said) == pytest.approx(by_hand(model, "a prompt", "other", output, 1.5, 0.5), abs=1e-5)


@pytest.mark.parametrize(("prompt", "other"), [("a" * 9, "b" * 40), ("a" * 40, "b" * 9)])
def test_the_longer_prompt_counts(prompt: str, other: str, json_vocabulary: Vocabulary) -> None:
    """Both prompts must fit the context with the output: one token too many is refused before any pass."""
    grammar = Repeat(LETTER, 5, 5)
    inner = Plain(HashModel(json_vocabulary, seed=1))
    longer = max(len(inner.encode_prompt(text)) for text in (prompt, other))
    for room, fits in ((4, False), (5, True)):
        model = Plain(HashModel(json_vocabulary, seed=1, max_context=longer + room))
        contrastive = Contrastive(model, without=other)
        if fits:
            assert re.fullmatch("[a-z]{5}", generate(contrastive, prompt, grammar, max_tokens=5).text)
        else:
            with pytest.raises(GenerationError, match="by 1 token"):
                generate(contrastive, prompt, grammar, max_tokens=5)
            assert model.calls == 0


def test_a_prompt_of_the_inner_model_is_refused(json_vocabulary: Vocabulary) -> None:
    """Ids that do not say where the prompt ends are an error, not an output without contrast."""
    model = HashModel(json_vocabulary, seed=3)
    contrastive = Contrastive(model, without="other")
    constraint = compile(choice("a", "b"), json_vocabulary)
    with Context(contrastive, model.encode_prompt("a prompt")) as context:
        generation = start_generation(context, constraint, max_tokens=3)
        with pytest.raises(GenerationError, match="encode_prompt of this model"):
            list(generation)
    with pytest.raises(GenerationError, match="no tokens"):
        contrastive.start().extend([])


@pytest.mark.parametrize(
    "arguments",
    [
        {"alpha": -0.1},
        {"alpha": math.inf},
        {"alpha": math.nan},
        {"gain": 0.0},
        {"gain": math.nan},
        {"plausibility": 0.0},
        {"plausibility": 1.1},
        {"uncertain_below": -0.1},
        {"uncertain_below": math.nan},
    ],
)
def test_numbers_out_of_range_are_refused(arguments: dict[str, float], json_vocabulary: Vocabulary) -> None:
    """The message names the number."""
    with pytest.raises(ValueError, match=f"Contrastive: {next(iter(arguments))}"):
        Contrastive(HashModel(json_vocabulary), without="other", **arguments)


def test_it_says_that_it_changes_the_distribution(json_vocabulary: Vocabulary) -> None:
    """The wrapper is a model that is not lossless, and describes its distribution."""
    contrastive = Contrastive.selective(HashModel(json_vocabulary), lame="other")
    assert contrastive.lossless is False
    assert "where the first is uncertain" in contrastive.target
    assert contrastive.name == "contrastive hash"
    assert isinstance(contrastive, LanguageModel)
