"""Momentum and look-back decoding, against loops that follow the papers literally."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import jsonschema
import numpy as np
import pytest
from function_model import FunctionModel
from numpy.typing import NDArray
from schema_as_written import as_written as json_schema

from structgen.decode import Greedy, generate
from structgen.decode.sampling import SequenceSampler
from structgen.engine import Vocabulary, compile
from structgen.frontends.json_schema import JsonPolicy
from structgen.grammar.nodes import ByteClass, Repeat, sequence
from structgen.methods.strategies.repetition import LookBack, Momentum
from structgen.methods.strategies.token_chooser import FreeText
from structgen.models import HashModel
from structgen.models.protocol import LanguageModel

LETTERS = ByteClass([(ord("a"), ord("z"))])
FEW = ByteClass([(ord("a"), ord("d"))])
EVERYWHERE = FreeText(share=0.0)
RECORDS = {
    "type": "array",
    "minItems": 4,
    "maxItems": 4,
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "ok": {"type": "boolean"}},
        "required": ["name", "ok"],
        "additionalProperties": False,
    },
}


class OneByOne:
    """A model that runs one sequence at a time."""

    def __init__(self, model: HashModel) -> None:
        self._model = model
        self.vocabulary, self.max_context, self.name = model.vocabulary, model.max_context, "one by one"

    def encode_prompt(self, prompt: Any, /, *, chat: bool = True) -> list[int]:
        return self._model.encode_prompt(prompt, chat=chat)

    def start(self) -> Any:
        return self._model.start()


def log_distribution(logits: NDArray[Any]) -> NDArray[np.float64]:
    values = logits.astype(np.float64)
    values = values - values.max()
    return values - math.log(math.fsum(np.exp(values).tolist()))


def masked(logits: NDArray[Any], ids: Sequence[int]) -> NDArray[np.float64]:
    distribution: NDArray[np.float64] = np.exp(log_distribution(logits[list(ids)]))
    return distribution


def letters_of(vocabulary: Vocabulary, pattern: bytes) -> list[int]:
    return [token for token, data in enumerate(vocabulary.tokens) if re.fullmatch(pattern, data)]


def repetition(text: Sequence[int], token: int, longest: int) -> int:
    """The length of the longest run that ends with ``token`` here and has occurred before, by search."""
    after = [*text, token]
    for length in range(min(longest, len(after)), 0, -1):
        run = after[len(after) - length :]
        if any(list(text[start : start + length]) == run for start in range(len(text) - length + 1)):
            return length
    return 0


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("alpha", "top_k"), [(0.2, 5), (0.02, 5), (0.2, 2), (0.0, 5), (5.0, 8)])
@pytest.mark.parametrize("with_prompt", [False, True])
def test_momentum_is_the_papers_rule(
    seed: int, alpha: float, top_k: int, with_prompt: bool, json_vocabulary: Vocabulary
) -> None:
    """In text with one letter per token, every choice follows the rule over all runs, found by search."""
    model = HashModel(json_vocabulary, seed=seed)
    momentum = Momentum(alpha, top_k, free=EVERYWHERE, prompt=with_prompt)
    result = generate(model, "abcabcab", Repeat(FEW, 40, 40), max_tokens=40, sampler=momentum)
    ids = letters_of(json_vocabulary, b"[a-d]")  # the budget leaves no room for the other tokens, which are longer
    ids = sorted({*ids, *letters_of(json_vocabulary, b"[a-d]{2}")})
    prompt = model.encode_prompt("abcabcab")
    output: list[int] = []
    letters = 0
    lengths = set()
    for _ in result.tokens:
        possible = [token for token in ids if letters + len(json_vocabulary.tokens[token]) <= 40]
        if len(possible) == 1:
            break
        p = masked(model.start().extend([*prompt, *output]), possible)
        best = sorted(range(len(possible)), key=lambda index: (-p[index], possible[index]))[:top_k]
        # The prompt is one piece of text, the output is another.
        before = [repetition_in([*([prompt] if with_prompt else []), output], possible[index]) for index in best]
        lengths |= set(before)
        scores = [p[index] - alpha * length for index, length in zip(best, before, strict=True)]
        token = possible[best[scores.index(max(scores))]]
        output.append(token)
        letters += len(json_vocabulary.tokens[token])
    assert tuple(output) == result.tokens[: len(output)]
    assert re.fullmatch("[a-d]{40}", result.text)
    assert {1, 2} <= lengths


def repetition_in(pieces: list[list[int]], token: int) -> int:
    """As ``repetition`` over several pieces; the last continues with ``token``; at most 5."""
    *others, last = pieces
    after = [*last, token]
    for length in range(min(5, len(after)), 0, -1):
        run = after[len(after) - length :]
        if repetition(last, token, length) == length:
            return length
        if any(piece[start : start + length] == run for piece in others for start in range(len(piece) - length + 1)):
            return length
    return 0


def test_momentum_leaves_a_loop(json_vocabulary: Vocabulary) -> None:
    """A model that would write "abcabc..." forever leaves where the resistance outweighs its preference."""
    following = {b"a": b"b", b"b": b"c", b"c": b"a"}

    def distribution(text: bytes) -> dict[bytes, float]:
        return {following.get(text[-1:], b"a"): 0.5, b"x": 0.2, b"y": 0.15, b"z": 0.1}

    model = FunctionModel(json_vocabulary, distribution)
    grammar = Repeat(LETTERS, 8, 8)
    assert generate(model, "-", grammar, sampler=Greedy()).text == "abcabcab"
    # 0.5 - 0.2 * 1 = 0.3 beats x, which is new (0.2); a run of two is at 0.1 and does not.
    assert generate(model, "-", grammar, sampler=Momentum(free=EVERYWHERE)).text[:5] == "abcax"
    # a again after x (0.3).  Then "ab" and "ax" are runs of two (0.1 and less), and y is new (0.15); a again (0.3).
    assert generate(model, "-", grammar, sampler=Momentum(free=EVERYWHERE)).text == "abcaxaya"


def greedy_choices(model: LanguageModel, prompt: str, result: Any, matcher: Any) -> list[tuple[int, int, bool]]:
    """For each choice: its position, the number of allowed tokens, and whether the most probable was taken."""
    size = model.vocabulary.size
    found = []
    base = model.encode_prompt(prompt)
    for position, step in enumerate(result.steps):
        row = np.zeros((1, (size + 31) // 32), dtype=np.int32)
        matcher.fill_mask(row)
        ids = [token for token in range(size) if row[0, token >> 5] >> (token & 31) & 1]
        if not step.forced:
            logits = model.start().extend([*base, *result.tokens[:position]])
            best = ids[int(np.argmax(logits[ids]))]
            found.append((position, len(ids), best == (step.token or 0)))
        if step.token is not None:
            assert matcher.accept(step.token)
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("make", [Momentum, LookBack])
def test_structure_is_never_resisted(seed: int, make: Any, json_vocabulary: Vocabulary) -> None:
    """Outside free text each choice is the most probable token; inside, some are not; the output is valid."""
    model = HashModel(json_vocabulary, seed=seed, writes="ababab")
    constraint = compile(json_schema(RECORDS), json_vocabulary)
    free = FreeText(share=0.3)
    strong = {"alpha": 9.0} if make is Momentum else {"threshold": 99.0}
    result = generate(model, "ab", constraint, max_tokens=300, sampler=make(free=free, **strong), seed=seed)
    jsonschema.validate(json.loads(result.text), RECORDS)
    choices = greedy_choices(model, "ab", result, constraint.matcher())
    structure = [taken for _, count, taken in choices if count < 0.3 * json_vocabulary.size]
    text = [taken for _, count, taken in choices if count >= 0.3 * json_vocabulary.size]
    assert len(structure) > 10
    assert all(structure)
    assert not all(text)
    # Power: if everything counts as text, structure is resisted too.
    result = generate(model, "ab", constraint, max_tokens=300, sampler=make(free=EVERYWHERE, **strong), seed=seed)
    jsonschema.validate(json.loads(result.text), RECORDS)
    choices = greedy_choices(model, "ab", result, constraint.matcher())
    assert not all(taken for _, count, taken in choices if count < 0.3 * json_vocabulary.size)


def test_a_closing_quote_is_structure(json_vocabulary: Vocabulary) -> None:
    """The token that ends a piece of free text is not part of it: the next string may end as soon."""

    def distribution(text: bytes) -> dict[bytes, float]:
        if text.endswith(b'"name":"'):
            return {b"h": 0.35, b"i": 0.3, b"j": 0.25}
        return {b'"': 0.3, b"x": 0.25, b"y": 0.2}

    model = FunctionModel(json_vocabulary, distribution)
    constraint = compile(json_schema(RECORDS, policy=JsonPolicy(whitespace="compact")), json_vocabulary)
    result = generate(model, "-", constraint, max_tokens=300, sampler=Momentum(free=FreeText(share=0.3)))
    # Names repeat letters, which is resisted; still, each ends at once.
    assert [record["name"] for record in json.loads(result.text)] == ["h", "i", "j", "h"]


def nearest(distribution: NDArray[np.float64], others: Sequence[NDArray[np.float64]]) -> float:
    """The least Kullback-Leibler divergence, by its definition."""
    p = np.exp(distribution)
    return min((math.fsum((p * (distribution - other)).tolist()) for other in others), default=math.inf)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("threshold", "top_k", "window"), [(1e3, 8, 128), (1e3, 3, 4), (2.0, 5, 128), (0.0, 5, 128)])
@pytest.mark.parametrize("prompt", ["abc and more of it", "x"])
def test_look_back_is_the_papers_rule(
    packed: bool, threshold: float, top_k: int, window: int, prompt: str, json_vocabulary: Vocabulary
) -> None:
    """Every choice is that of a loop that computes all divergences from fresh sessions, with equal random numbers."""
    inner = HashModel(json_vocabulary, seed=2)
    model: LanguageModel = inner if packed else OneByOne(inner)
    grammar = Repeat(LETTERS, 12, 12)
    look_back = LookBack(threshold, top_k, window, free=EVERYWHERE)
    result = generate(model, prompt, grammar, max_tokens=12, sampler=look_back, seed=7)
    random = np.random.Generator(np.random.PCG64(7))
    ids = letters_of(json_vocabulary, b"[a-z]+")
    base = inner.encode_prompt(prompt)

    def distribution(tokens: Sequence[int]) -> NDArray[np.float64]:
        return log_distribution(inner.start().extend(tokens))

    # The distributions before each token of the prompt except the first.
    within = [distribution(base[:length]) for length in range(1, len(base))][-window:]
    output: list[int] = []
    past: list[NDArray[np.float64]] = []
    alarms = letters = 0
    while True:
        possible = [token for token in ids if letters + len(json_vocabulary.tokens[token]) <= 12]
        if len(possible) < 2:
            break
        now = distribution([*base, *output])
        by_rank = sorted(possible, key=lambda token: (-now[token], token))
        if nearest(now, past[-window:]) <= threshold:
            alarms += 1
            candidates = by_rank[:top_k]
            distances = [
                nearest(distribution([*base, *output, token]), within) if within else 0.0 for token in candidates
            ]
            weights = np.exp(-(np.array(distances) - min(distances)))
            token = candidates[int(np.searchsorted(np.cumsum(weights), random.random() * weights.sum(), side="right"))]
        else:
            token = by_rank[0]
        past.append(now)
        output.append(token)
        letters += len(json_vocabulary.tokens[token])
    assert result.tokens[: len(output)] == tuple(output)
    assert re.fullmatch("[a-z]{12}", result.text)
    assert (alarms > 0) is (threshold > 1)
    if threshold == 2.0:
        assert 0 < alarms < len(output) - 1
    # One pass for each choice; and where the prompt has distributions, one over it and one for the candidates of each
    # alarm.
    passes = (1 if packed else top_k) * alarms + 1 if within and alarms else 0
    assert result.stats.forwards == len(output) + passes


def test_look_back_leaves_a_loop(json_vocabulary: Vocabulary) -> None:
    """A distribution that returns raises the alarm at once.

    The candidate that leads back to the prompt is taken.
    """

    def distribution(text: bytes) -> dict[bytes, float]:
        if text.endswith(b"p"):
            return {b"q": 0.9999}
        if text.endswith(b"k"):
            return {b"q": 0.9998}
        return {b"a": 0.5, b"b": 0.3, b"k": 0.15}

    model = FunctionModel(json_vocabulary, distribution)
    grammar = Repeat(LETTERS, 3, 3)
    assert generate(model, "pq", grammar, sampler=Greedy()).text == "aaa"
    for seed in range(8):
        # After k comes a distribution of the prompt, after the others none: k has nearly all the weight of the draw.
        text = generate(model, "pq", grammar, sampler=LookBack(0.5, 3, free=EVERYWHERE), seed=seed).text
        assert text == "akq"


def test_free_text_is_a_share_of_tokens_and_of_probability(json_vocabulary: Vocabulary) -> None:
    """Both conditions are tested at their limits; the mask, not the position, decides what is free."""
    from structgen.decode.step.distribution import Distribution

    distribution = Distribution.of(np.arange(30, dtype=np.int32), np.log(np.full(30, 0.02)))
    assert distribution.log_z == pytest.approx(math.log(0.6))
    for share, mass, holds in ((0.1, 0.0, True), (0.1, 0.6, True), (0.1, 0.61, False), (0.101, 0.0, False)):
        assert FreeText(share, mass).holds(distribution, 300) is holds
    for arguments in ({"share": -0.1}, {"share": math.nan}, {"mass": 1.1}):
        with pytest.raises(ValueError, match=f"FreeText: {next(iter(arguments))}"):
            FreeText(**arguments)


def test_mass_alone_can_decide_what_is_free(json_vocabulary: Vocabulary) -> None:
    """Letters with a small probability are no free text where half of the probability is required."""

    def distribution(text: bytes) -> dict[bytes, float]:
        return {b"a": 0.25, b"b": 0.15, b" ": 0.55}

    model = FunctionModel(json_vocabulary, distribution)
    for mass, text in ((0.5, "aaa"), (0.3, "aab")):
        # Among the allowed, a has 0.62 and b 0.38; "aa" is a run of two at the third letter: 0.62 - 0.3.
        sampler = Momentum(alpha=0.15, free=FreeText(share=0.0, mass=mass))
        assert generate(model, "-", Repeat(FEW, 3, 3), sampler=sampler).text == text


def test_pieces_of_text_are_apart(json_vocabulary: Vocabulary) -> None:
    """A run does not cross structure: "a" before a bracket and "b" after it are not "ab"."""

    def distribution(text: bytes) -> dict[bytes, float]:
        if text.endswith(b"[a"):
            return {b"b": 0.5, b"c": 0.3}
        return {b"a": 0.5, b"c": 0.1}

    model = FunctionModel(json_vocabulary, distribution)
    part = sequence("[", LETTERS, LETTERS, LETTERS, "]")
    result = generate(model, "-", sequence(part, part), sampler=Momentum(alpha=0.2, free=FreeText(share=0.05)))
    # First piece: a, b, then a again (0.5 - 0.2 beats c); it ends the piece, so it is structure.  In the second piece a
    # is a run of one (0.3), and b after it would be a run of two (0.1), so c comes, which is new.
    assert result.text == "[aba][aca]"


def test_a_run_does_not_reach_over_structure(json_vocabulary: Vocabulary) -> None:
    """Text that ends with q and text that begins with r are not "qr": later "qr" is a run of one token only."""
    wishes = {b"[": b"p", b"[p": b"x", b"[px": b"q", b"[pxq": b"y", b"][": b"r", b"][r": b"q", b"][rq": b"r"}

    def distribution(text: bytes) -> dict[bytes, float]:
        start = text.rfind(b"[")
        key = text[start - 1 if b"]" in text else start :]
        return {wishes.get(key, b"s"): 0.5, b"t": 0.25}

    model = FunctionModel(json_vocabulary, distribution)
    part = sequence("[", Repeat(LETTERS, 4, 4), "]")
    result = generate(model, "-", sequence(part, part), max_tokens=12, sampler=Momentum(free=FreeText(share=0.05)))
    # The third letter: among the letters r has 0.66 and t 0.33. r has come once (0.46); as a run of two it would have
    # 0.26.
    assert result.text[:9] == "[pxqy][rq"
    assert result.text[9] == "r"


def test_look_back_forgets_what_is_beyond_its_window(json_vocabulary: Vocabulary) -> None:
    """Distributions that return after three steps are found in a window of three, and not in one of two."""

    def distribution(text: bytes) -> dict[bytes, float]:
        letter = b"abc"[(len(text) - 1) % 3]
        return {bytes([letter]): 0.7, b"z": 0.25}

    model = FunctionModel(json_vocabulary, distribution)
    for window, alarms in ((3, True), (2, False)):
        sampler = LookBack(0.5, 2, window, free=EVERYWHERE)
        texts = {generate(model, "-", Repeat(LETTERS, 6, 6), sampler=sampler, seed=seed).text for seed in range(30)}
        assert (texts == {"abcabc"}) is not alarms
        assert all(text.startswith("abc") for text in texts)


def test_they_are_samplers_of_outputs() -> None:
    """They report that they are not lossless, and refuse numbers out of range."""
    for sampler in (Momentum(), LookBack()):
        assert isinstance(sampler, SequenceSampler)
        assert sampler.lossless is False
    for make, arguments in (
        (Momentum, {"alpha": -1.0}),
        (Momentum, {"top_k": 0}),
        (Momentum, {"resistance": ()}),
        (Momentum, {"resistance": (0.0, -1.0)}),
        (LookBack, {"threshold": math.nan}),
        (LookBack, {"top_k": 0}),
        (LookBack, {"window": 0}),
    ):
        with pytest.raises(ValueError, match=f"{make.__name__}: {next(iter(arguments))}"):
            make(**arguments)
