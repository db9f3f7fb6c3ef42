"""Holes filled by models without weights: the output, the model's input, and the probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from structgen.decode import Greedy, Multinomial
from structgen.decode.diffusion.posterior import Dingo, Posterior
from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import GenerationError, LimitExceeded, VocabularyError
from structgen.frontends.json_schema import json_schema
from structgen.frontends.lark import lark
from structgen.frontends.regex import regex
from structgen.methods.infilling import Frame, Hole, InfillResult, Interruption, find_markers, hole, infill
from structgen.models import HashModel
from structgen.models.diffusion import HashDiffusion

VOCABULARY = Vocabulary(
    [b"", b"(", b")", b"x", b"()", b")(", b"x)", b"((", b"+", b"+x", b""], eos=[0], special={10: "<mask>"}
)
SUMS = lark('start: start "+" term | term\nterm: "(" start ")" | "x"')
FLAT = regex(r"x(\+x|\+\(x(\+x)?\))*")


class Watched:
    """A model that records the tokens of its sessions."""

    def __init__(self, model: HashModel) -> None:
        self.model = model
        self.vocabulary = model.vocabulary
        self.max_context = None
        self.name = "watched"
        self.given: list[list[int]] = []

    def encode_prompt(self, prompt: Any, /, *, chat: bool = True) -> list[int]:
        return self.model.encode_prompt(prompt, chat=chat)

    def start(self) -> WatchedSession:
        return WatchedSession(self)


class WatchedSession:
    """Records the whole sequence at each forward pass."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._session = watched.model.start()
        self._ids: list[int] = []

    @property
    def length(self) -> int:
        return self._session.length

    @property
    def forwards(self) -> int:
        return self._session.forwards

    def extend(self, token_ids: Sequence[int], /) -> Any:
        self._ids += token_ids
        self._watched.given.append(list(self._ids))
        return self._session.extend(token_ids)

    def extend_all(self, token_ids: Sequence[int], /) -> Any:
        raise NotImplementedError

    def truncate(self, length: int, /) -> None:
        del self._ids[length:]
        self._session.truncate(length)

    def fork(self) -> WatchedSession:
        raise NotImplementedError

    def close(self) -> None:
        self._session.close()


def is_member(constraint: Constraint, tokens: Sequence[int]) -> bool:
    matcher = constraint.matcher()
    return all(matcher.accept(token) for token in tokens) and matcher.is_accepting


def check(result: InfillResult, parts: Sequence[Any], constraint: Constraint) -> None:
    """Check that fixed texts are there byte for byte, holes keep to their tokens, and the whole is in the language."""
    expected = b""
    fillings = iter(result.fillings)
    for part in parts:
        if isinstance(part, Hole):
            filling = next(fillings)
            assert len(filling.tokens) <= part.most
            assert filling.data == constraint.vocabulary.decode(filling.tokens)
            expected += filling.data
        else:
            expected += part.encode()
    assert result.data == expected == constraint.vocabulary.decode(result.tokens)
    assert is_member(constraint, result.tokens)


PARTS: list[list[Any]] = [
    ["(x", hole(4), "+(", hole(5), ")"],
    [hole(6)],
    ["x+", hole(3)],
    [hole(5), "+x"],
    ["((", hole(2), "+", hole(2), "))+", hole(6), "(x", hole(3)],
    ["x", hole(0), "+", hole(1)],
    ["(", hole(1), ")"],
]


@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_left_to_right_models_fill_every_frame(parts: list[Any]) -> None:
    """Several seeds, samplers and orders give strings with the fixed texts in place; equal seeds give equal texts."""
    constraint = compile(SUMS, VOCABULARY)
    texts = set()
    for seed in range(6):
        for order in ("forward", "backward", Interruption(2.0), Interruption(0.5, "x")):
            for sampler in (Greedy(), Multinomial(temperature=2.0)):
                model = HashModel(VOCABULARY, seed=seed)
                result = infill(model, parts, constraint, sampler=sampler, seed=seed, order=order)
                check(result, parts, constraint)
                assert result == infill(model, parts, constraint, sampler=sampler, seed=seed, order=order)
                texts.add(result.text)
    assert len(texts) > 1 or sum(part.most for part in parts if isinstance(part, Hole)) == 1


FLAT_PARTS: list[list[Any]] = [
    ["x", hole(4), "+(", hole(5), ")"],
    [hole(6)],
    ["x+", hole(3)],
    [hole(5), "+x"],
    ["x+(", hole(2), ")", hole(3), "+x", hole(2)],
]


@pytest.mark.parametrize("parts", FLAT_PARTS, ids=str)
@pytest.mark.parametrize("grammar", ["regular", "recursive"])
def test_diffusion_models_fill_every_frame(parts: list[Any], grammar: str) -> None:
    """Every choice of lengths and completions gives strings, and no canvas ever changes its length."""
    constraint = compile(FLAT if grammar == "regular" else SUMS, VOCABULARY)
    for seed in range(2):
        model = HashDiffusion(VOCABULARY, seed=seed)
        for sampler in (Dingo(), Posterior()):
            for lengths in ("rate", "mass", "longest"):
                shown: list[int] = []
                result = infill(
                    model,
                    parts,
                    constraint,
                    sampler=sampler,
                    seed=seed,
                    lengths=lengths,
                    stream=lambda snapshot, shown=shown: shown.append(len(snapshot.canvas)),
                )
                check(result, parts, constraint)
                assert len(set(shown)) <= 1
                assert all(len(result.tokens) <= length for length in shown)


def completions(constraint: Constraint, canvas: list[list[tuple[int, ...]]]) -> list[tuple[tuple[int, ...], ...]]:
    return [held for held in product(*canvas) if is_member(constraint, [token for tokens in held for token in tokens])]


@pytest.mark.parametrize("seed", range(8))
def test_probabilities_of_a_left_to_right_model_are_the_projection(seed: int) -> None:
    """``log_prob`` of two fillings equals enumeration with the model's logits, token by token and at ends."""
    constraint = compile(FLAT, VOCABULARY)
    model = HashModel(VOCABULARY, seed=seed)
    texts, most = ["x", "+(x", ""], [3, 2]
    parts = [texts[0], hole(most[0]), texts[1], hole(most[1])]
    result = infill(model, parts, constraint, sampler=Multinomial(), seed=seed, prompt="x")
    fixed = [tuple(VOCABULARY.tokenize(text)) for text in texts]
    tokens = list(range(1, 10))

    def open_slots(count: int) -> list[list[tuple[int, ...]]]:
        return [[(), *((token,) for token in tokens)] for _ in range(count)]

    before = [*model.encode_prompt("x", chat=False), *fixed[0]]
    written: list[list[tuple[int, ...]]] = [[fixed[0]]]
    for number, filling in enumerate(result.fillings):
        total = 0.0
        rest: list[list[tuple[int, ...]]] = [[fixed[number + 1]]]
        if number == 0:
            rest += [*open_slots(most[1]), [fixed[2]]]
        for place, taken in enumerate([*filling.tokens, None]):
            head = [*written, [filling.tokens[:place]]]
            left = most[number] - place
            if left == 0:
                continue
            allowed = [
                token for token in tokens if completions(constraint, [*head, [(token,)], *open_slots(left - 1), *rest])
            ]
            can_end = bool(completions(constraint, [*head, *rest]))
            assert taken in allowed or (taken is None and can_end)
            if len(allowed) + can_end == 1:
                continue
            session = model.start()
            logits = session.extend([*before, *filling.tokens[:place]]).astype(np.float64)
            end = fixed[number + 1][0] if fixed[number + 1] else 0
            scores: dict[int | None, float] = {token: float(logits[token]) for token in allowed}
            if can_end:
                scores[None] = float(logits[end])
            total += scores[taken] - math.log(math.fsum(math.exp(score) for score in scores.values()))
        assert filling.log_prob == pytest.approx(total, abs=1e-6)
        before += [*filling.tokens, *fixed[number + 1]]
        written += [[filling.tokens], [fixed[number + 1]]]


def test_a_test_of_probabilities_can_fail() -> None:
    """With the mask for gaps of any length, the probabilities of the test above would be different."""
    constraint = compile(FLAT, VOCABULARY)
    tokens = list(range(1, 10))
    fixed = VOCABULARY.tokenize("x")
    # After "x" with two tokens left, "+" may be followed by "x" or by a bracket that no token closes in time.
    within = completions(constraint, [[tuple(fixed)], [(8,)], [(), *((token,) for token in tokens)]])
    anyhow = completions(constraint, [[tuple(fixed)], [(8,)], *[[(), *((token,) for token in tokens)]] * 3])
    assert {held[2] for held in within} == {(3,)}
    assert (1,) in {held[2] for held in anyhow}


def test_lengths_on_a_canvas_are_those_of_the_largest_mass() -> None:
    """The mass of every length agrees with enumeration, from the model's own distributions.

    So does the rate at which slots count alike.
    """
    constraint = compile(FLAT, VOCABULARY)
    fixed = [VOCABULARY.tokenize("x"), VOCABULARY.tokenize("x+x")]
    seen = set()
    for seed in range(6):
        model = HashDiffusion(VOCABULARY, seed=seed)
        masses: dict[int, float] = {}
        for length in range(5):
            canvas = [*fixed[0], *[10] * length, *fixed[1]]
            logits = model.start([]).denoise(np.array([canvas], dtype=np.int32))[0].astype(np.float64)
            chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            masses[length] = math.fsum(
                math.prod(chances[len(fixed[0]) + slot, token] for slot, token in enumerate(held))
                for held in product(range(1, 10), repeat=length)
                if is_member(constraint, [*fixed[0], *held, *fixed[1]])
            )
        rates = {length: masses[length] ** (1 / length) for length in masses if length and masses[length]}
        by_mass, by_rate = max(masses, key=masses.__getitem__), max(rates, key=rates.__getitem__)
        for lengths, expected in (("mass", by_mass), ("rate", by_rate), ("longest", max(rates))):
            result = infill(model, ["x", hole(4), "x+x"], constraint, lengths=lengths)
            assert len(result.fillings[0].tokens) == expected, lengths
            seen.add(expected)
    assert len(seen) > 1


def test_markers_arrange_what_the_model_reads() -> None:
    """Prefix, suffix and middle have the vocabulary's markers; without markers the model reads only the prefix."""
    names = {10: "<fim_prefix>", 11: "<fim_suffix>", 12: "<fim_middle>"}
    vocabulary = Vocabulary([*VOCABULARY.tokens[:10], b"", b"", b""], eos=[0], special=names)
    model = Watched(HashModel(vocabulary, seed=3))
    parts = ["(x", hole(3), "+x)", hole(3)]
    left, right = vocabulary.tokenize("(x"), vocabulary.tokenize("+x)")
    result = infill(model, parts, SUMS, prompt="x+x", sampler=Multinomial(), seed=1)
    first = [10, *vocabulary.tokenize("x+x"), *left, 11, *right, 12]
    assert model.given[0] == first
    # Nothing is known after the second hole, so that it is written to the end.
    second = [*vocabulary.tokenize("x+x"), *left, *result.fillings[0].tokens, *right]
    assert any(given[: len(second)] == second for given in model.given)
    plain = Watched(HashModel(vocabulary, seed=3))
    infill(plain, parts, SUMS, prompt="x+x", middle=False)
    assert plain.given[0][: len(left) + 2] == [*vocabulary.tokenize("x+x"), *left]


@pytest.mark.parametrize(
    ("special", "tokens", "expected"),
    [
        ({1: "<|fim_prefix|>", 2: "<|fim_suffix|>", 3: "<|fim_middle|>"}, [b"", b"", b"", b"", b"a"], (1, 2, 3)),
        ({}, [b"", b"<|fim_middle|>", b"<|fim_suffix|>", b"<|fim_prefix|>"], (3, 2, 1)),
        ({1: "[SUFFIX]", 2: "[PREFIX]"}, [b"", b"", b"", b"a"], (2, 1, None)),
        ({1: "<fim_prefix>", 2: "<|fim_suffix|>", 3: "<|fim_middle|>"}, [b"", b"", b"", b"", b"a"], None),
    ],
)
def test_markers_are_found(special: dict[int, str], tokens: list[bytes], expected: tuple[int, ...] | None) -> None:
    """They may be special or ordinary, but all of one family; without a middle marker the suffix comes first."""
    found = find_markers(Vocabulary(tokens, eos=[0], special=special))
    assert (None if found is None else tuple(found)) == expected
    if found is not None:
        middle = [] if found.middle is None else [found.middle]
        before = [found.prefix, 7, 8, found.suffix, 9, *middle] if middle else [found.suffix, 9, found.prefix, 7, 8]
        assert found.prompt([7, 8], [9]) == before


def test_an_interrupted_hole_gets_its_end_first() -> None:
    """The end is written after its given prefix, before the middle, in the format of the model's training."""
    names = {10: "<fim_prefix>", 11: "<fim_suffix>", 12: "<fim_middle>"}
    vocabulary = Vocabulary([*VOCABULARY.tokens[:10], b"", b"", b""], eos=[0], special=names)
    model = Watched(HashModel(vocabulary, seed=4))
    result = infill(model, ["x", hole(12)], SUMS, order=Interruption(2.0, "+(x+"), sampler=Multinomial(), seed=2)
    assert b"+(x+" in result.fillings[0].data
    suffix = vocabulary.tokenize("+(x+")
    assert model.given[0] == [0, *vocabulary.tokenize("x")]  # nothing is known after it; interrupted at once
    assert model.given[1] == [10, *vocabulary.tokenize("x"), 11, *suffix]
    assert any(12 in given for given in model.given[2:])


def test_an_interruption_that_cannot_be_is_none() -> None:
    """Where the suffix has no place, the hole is written as usual."""
    constraint = compile(SUMS, VOCABULARY)
    model = HashModel(VOCABULARY, seed=4)
    plain = infill(model, ["(", hole(5), ")"], constraint)
    for suffix in ("))", "+x+x+x+x+x+x+x"):
        assert infill(model, ["(", hole(5), ")"], constraint, order=Interruption(2.0, suffix)) == plain
    assert infill(model, ["(", hole(5), ")"], constraint, order=Interruption(0.0, "+x")) == plain


def test_forced_tokens_cost_no_forward_pass() -> None:
    """A hole with one filling is filled without the model."""
    vocabulary = Vocabulary([b"", *(bytes([c]) for c in b"abcdef"), b""], eos=[0], special={7: "<mask>"})
    constraint = compile(regex("abc(d|e)f"), vocabulary)
    result = infill(HashModel(constraint.vocabulary), ["a", hole(2), "df"], constraint)
    assert (result.text, result.forwards) == ("abcdf", 0)
    result = infill(HashDiffusion(constraint.vocabulary), ["a", hole(2), "df"], constraint)
    assert (result.text, result.forwards) == ("abcdf", 0)


def test_tokens_do_not_reach_across_the_edge_of_a_hole() -> None:
    """``x)`` is a token, but a hole ends before the text after it: bytes stay, tokens may differ."""
    result = infill(HashModel(VOCABULARY, writes="x"), ["(", hole(1), ")"], SUMS)
    assert result.text == "(x)"
    assert [VOCABULARY.tokens[token] for token in result.tokens] == [b"(", b"x", b")"]
    assert VOCABULARY.tokenize("(x)") != list(result.tokens)


def test_holes_may_cut_a_character() -> None:
    """A fixed part may be bytes of a character whose rest is in the hole."""
    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
    result = infill(HashModel(vocabulary), [b"\xc3", hole(1), "b"], regex("[éè]b"))
    assert result.text in ("éb", "èb")
    assert result.fillings[0].text == "\ufffd"


def test_the_value_and_captures_are_those_of_the_whole_text(json_vocabulary: Vocabulary) -> None:
    """The result reads like that of ``generate``."""
    grammar = json_schema({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]})
    result = infill(HashModel(json_vocabulary, seed=1), ['{"name": "ab', hole(4), '12"}'], grammar)
    assert result.value["name"].startswith("ab")
    assert result.value["name"].endswith("12")
    named = regex("[ab]+").named("left") + "-" + regex("[0-9]+").named("right")
    result = infill(HashModel(json_vocabulary, seed=1), ["a", hole(3), "-", hole(2)], named)
    assert result.captures["left"] == result.text.split("-")[0]
    assert str(result) == result.text


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "no hole"),
        (["x"], "no hole"),
        ([hole(1), hole(2)], "right after"),
        ([hole(1), "", hole(2)], "right after"),
        ([3, hole(1)], "neither text nor hole"),
        ("x", "a list"),
        (["\ud800", hole(1)], "surrogate"),
    ],
)
def test_malformed_parts_are_refused(parts: Any, message: str) -> None:
    """The error says what is wrong and what to do."""
    with pytest.raises(ValueError, match=message):
        Frame.of(parts, VOCABULARY)


def test_holes_are_bounded() -> None:
    """A hole of a billion tokens is refused at once."""
    with pytest.raises(LimitExceeded, match="tokens of all holes"):
        infill(HashModel(VOCABULARY), ["x", hole(10**9)], SUMS)


@pytest.mark.parametrize("most", [-1, 1.5, "3", None])
def test_malformed_holes_are_refused(most: Any) -> None:
    """The size of a hole is a number of tokens."""
    with pytest.raises(ValueError, match="hole"):
        hole(most)


def test_malformed_arguments_are_refused() -> None:
    """The error names the argument."""
    model, diffusion, parts = HashModel(VOCABULARY), HashDiffusion(VOCABULARY), ["x", hole(2)]
    with pytest.raises(ValueError, match="order"):
        infill(model, parts, SUMS, order="middle")
    with pytest.raises(ValueError, match="lengths"):
        infill(diffusion, parts, FLAT, lengths="short")
    with pytest.raises(ValueError, match="Sampler"):
        infill(model, parts, SUMS, sampler=Dingo())
    with pytest.raises(ValueError, match="CanvasSampler"):
        infill(diffusion, parts, FLAT, sampler=Greedy())
    with pytest.raises(ValueError, match="together"):
        infill(diffusion, parts, FLAT, order="backward")
    with pytest.raises(ValueError, match="below"):
        Interruption(-0.1)
    other = compile(SUMS, Vocabulary([b"", b"(", b")", b"x", b"+"], eos=[0]))
    with pytest.raises(VocabularyError):
        infill(model, parts, other)


@pytest.mark.parametrize("kind", [HashModel, HashDiffusion])
def test_what_cannot_be_completed_is_refused_before_any_forward_pass(kind: Any) -> None:
    """The error names the texts, the holes and what to do; the model is not asked."""
    model = kind(VOCABULARY)
    model.start = lambda *_: pytest.fail("the model was asked")
    for parts in (["x)", hole(9)], ["((((", hole(2), "x"], ["x", hole(0), "x"], [hole(3), "+"]):
        with pytest.raises(GenerationError, match="cannot be filled") as caught:
            infill(model, parts, SUMS)
        assert "holes take" in caught.value.evidence


@pytest.mark.parametrize("kind", [HashModel, HashDiffusion])
def test_what_does_not_fit_the_context_is_refused(kind: Any) -> None:
    """The error comes before any forward pass."""
    with pytest.raises(GenerationError, match="exceed its context"):
        infill(kind(VOCABULARY, max_context=8), ["x+", hole(9), "x"], FLAT, prompt="xxx", **_longest(kind))
    assert infill(kind(VOCABULARY, max_context=30), ["x+", hole(9), "x"], FLAT, prompt="xxx", **_longest(kind))


def _longest(kind: Any) -> dict[str, Any]:
    return {"lengths": "longest"} if kind is HashDiffusion else {}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_logits_that_are_no_distribution_are_refused(bad: float) -> None:
    """NaN and infinities of a model are errors, not choices."""

    class Broken(HashModel):
        def logits(self, state: int, matched: int) -> Any:
            return np.full(self.vocabulary.size, bad, dtype=np.float32)

    with pytest.raises(GenerationError):
        infill(Broken(VOCABULARY), ["x", hole(4), "x"], SUMS)
