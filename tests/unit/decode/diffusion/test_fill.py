"""Filling canvases: every step can be completed, every output is in the language, and all errors come early."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from itertools import pairwise
from typing import Any

import jsonschema
import numpy as np
import pytest
from toy_canvases import FREE, MASK, VOCABULARY, ScriptedDiffusion, ToyCanvases, log_softmax

import structgen as sg
from structgen.decode import Result
from structgen.decode.diffusion import (
    CanvasRun,
    CanvasSampler,
    Completion,
    Dingo,
    DualReuse,
    Factor,
    Posterior,
    PrefixReuse,
    Snapshot,
    Static,
    Threshold,
    canvas as canvas_length,
    canvas_language,
    fill_canvas,
    shown_canvas,
)
from structgen.engine import Vocabulary, compile
from structgen.errors import BudgetError, GenerationError, GrammarError, ModelError, VocabularyError
from structgen.grammar.nodes import SpecialToken, sequence
from structgen.methods.policies import CreditDecoding, EntropyBound, Explore, LocalLeap, Prophet
from structgen.models import HashModel
from structgen.models.diffusion import HashDiffusion

PATTERN = r"(a|b){2,4}|1(\.1){0,2}"
GRAMMAR = sg.regex(PATTERN)
SLOTS = 6
TOY = ToyCanvases(PATTERN, SLOTS)

POLICIES: list[Any] = [
    Static(),
    Static(per_step=2),
    Static(steps=2),
    Static(remasking="random"),
    Threshold(0.6),
    Factor(1.5),
    Prophet((1.0, 0.5, 0.2)),
    Prophet((1.0, 0.5, 0.2), over="completion"),
    CreditDecoding(0.6),
    LocalLeap(0.8, 0.4),
    EntropyBound(0.8),
    Explore(0.8),
]
SAMPLERS: list[CanvasSampler] = [Dingo(), Posterior(), Posterior(tail="scored")]

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["ab", "é", 'q"']}, "maxItems": 2},
        "ok": {"type": ["boolean", "null"]},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def mask_vocabulary(json_vocabulary: Vocabulary) -> Vocabulary:
    """The JSON vocabulary with MASK added."""
    tokens = [*json_vocabulary.tokens, b""]
    return Vocabulary(tokens, eos=list(json_vocabulary.eos), special={len(tokens) - 1: "<mask>"})


def watched(model: Any, grammar: Any, **options: Any) -> tuple[Result, list[Snapshot]]:
    """Fill a canvas and return its snapshots."""
    snapshots: list[Snapshot] = []
    result = fill_canvas(model, "", grammar, stream=snapshots.append, **options)
    return result, snapshots


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_every_step_can_be_completed(policy: Any, sampler: CanvasSampler) -> None:
    """After each commit some string, found by enumeration of all canvases, agrees with the fixed slots."""
    for context, temperature, block, seed in [
        (1.0, 1.0, None, 0),
        (0.5, 0.3, 2, 1),
        (1.0, 3.0, 3, 2),
        (0.0, 1.0, 1, 3),
        (1.0, 1.0, 4, 4),
    ]:
        model = HashDiffusion(VOCABULARY, context=context, seed=seed)
        result, snapshots = watched(
            model,
            GRAMMAR,
            canvas=SLOTS,
            policy=policy,
            sampler=sampler,
            temperature=temperature,
            block=block,
            seed=seed,
        )
        assert all(len(TOY.agreeing(snapshot.canvas)) for snapshot in snapshots)
        for before, after in pairwise(snapshots):
            kept = before.canvas != FREE
            assert np.array_equal(before.canvas[kept], after.canvas[kept])
            assert set(after.committed) == set(np.flatnonzero(~kept & (after.canvas != FREE)))
            assert len(after.committed) > 0
            for slot in after.forced:  # free tokens: all strings that hold the rest hold this token, too
                unknown = after.canvas.copy()
                unknown[after.forced] = FREE
                assert len(set(TOY.agreeing(unknown)[:, slot])) == 1
        assert re.fullmatch(PATTERN, result.text)
        assert result.canvas is not None
        assert tuple(snapshots[-1].canvas) == result.canvas.tokens in TOY.members
        assert sorted(slot for commit in result.canvas.commits for slot in commit) == list(range(SLOTS))
        assert result.stats.forwards == snapshots[-1].forwards <= SLOTS


@pytest.mark.parametrize("policy", [each for each in POLICIES if not isinstance(each, (Explore, Prophet))], ids=repr)
def test_blocks_are_filled_from_left_to_right(policy: Any) -> None:
    """A slot that was not forced is filled only after all earlier blocks, by every rule with blocks."""
    grammar = sg.regex("(a|b|1){9}")
    _, snapshots = watched(HashDiffusion(VOCABULARY, seed=5), grammar, canvas=9, policy=policy, block=3)
    for before, after in pairwise(snapshots):
        begun = int(np.argmax(before.canvas == FREE)) // 3
        chosen = set(after.committed) - set(after.forced)
        assert {slot // 3 for slot in chosen} == {begun}


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("sampler", SAMPLERS[:2], ids=repr)
def test_json_is_valid(policy: Any, sampler: CanvasSampler, mask_vocabulary: Vocabulary) -> None:
    """``json.loads`` and another validator accept the output."""
    constraint = compile(sg.json_schema(SCHEMA), mask_vocabulary)
    for context, block, canvas in [(1.0, None, 48), (0.3, 16, None)]:
        model = HashDiffusion(mask_vocabulary, context=context, seed=7)
        result, snapshots = watched(model, constraint, canvas=canvas, policy=policy, sampler=sampler, block=block)
        jsonschema.validate(json.loads(result.text), SCHEMA)
        assert result.value == json.loads(result.text)
        assert result.stats.forwards < len(snapshots[0].canvas)
        assert result.stats.tokens == len(result.tokens) == result.stats.forced + result.stats.sampled


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("sampler", SAMPLERS[:2], ids=repr)
def test_recursive_grammars_are_filled(policy: Any, sampler: CanvasSampler) -> None:
    """Palindromes around a digit, which no automaton accepts, are checked by reversal, each step by search."""
    vocabulary = Vocabulary([b"", b"a", b"b", b"1", b"a1", b"ba", b""], eos=[0], special={6: "<mask>"})
    grammar = sg.lark('start: "1" | "a" start "a" | "b" start "b"')
    palindromes = {
        text + "1" + text[::-1] for size in range(4) for text in map("".join, itertools.product("ab", repeat=size))
    }
    pattern = "|".join(palindromes)
    toy = ToyCanvases(pattern, 5, vocabulary)
    for seed in range(2):
        model = HashDiffusion(vocabulary, seed=seed)
        snapshots: list[Snapshot] = []
        result = fill_canvas(
            model, "", grammar, canvas=5, policy=policy, sampler=sampler, seed=seed, stream=snapshots.append
        )
        assert result.text == result.text[::-1]
        assert re.fullmatch("[ab]*1[ab]*", result.text)
        assert all(len(toy.agreeing(snapshot.canvas)) for snapshot in snapshots)


@pytest.mark.parametrize("sampler", SAMPLERS[:2], ids=repr)
def test_ambiguous_grammars_are_filled(sampler: CanvasSampler) -> None:
    """For sums with several derivations, policies get a confidence, and the outputs are right."""
    vocabulary = Vocabulary([b"", b"1", b"+", b"1+", b"(", b")", b""], eos=[0], special={6: "<mask>"})
    grammar = sg.lark('start: e\ne: e "+" e | "1" | "(" e ")"')
    for seed, policy in enumerate(POLICIES):
        model = HashDiffusion(vocabulary, seed=seed)
        result = fill_canvas(model, "", grammar, canvas=7, policy=policy, sampler=sampler, seed=seed)
        assert eval(result.text) == result.text.count("1")
    with pytest.raises(GenerationError, match="more than once"):
        sg.sample(HashDiffusion(vocabulary), "", grammar, sampler=sg.samplers.SMC(2), canvas=7)


@pytest.mark.exhaustive
def test_what_the_model_wants_is_written(mask_vocabulary: Vocabulary) -> None:
    """A model that prefers a string of the language gets it; any other model gets a similar one."""
    wish = '{"name": "Ada", "age": 36, "tags": ["ab"]}'
    grammar = sg.json_schema(SCHEMA)
    for policy in POLICIES:
        model = HashDiffusion(mask_vocabulary, writes=wish)
        assert fill_canvas(model, "", grammar, canvas=40, policy=policy).value == json.loads(wish)
    stranger = HashDiffusion(mask_vocabulary, writes=wish.replace("36", "3x"))
    age = fill_canvas(stranger, "", grammar, canvas=40).value["age"]
    assert str(age).startswith("3")


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_seeds_decide(policy: Any) -> None:
    """Equal seeds give equal outputs, other seeds give others; the most probable completion needs no seed."""
    model = HashDiffusion(VOCABULARY, seed=2)

    def texts(sampler: CanvasSampler) -> list[tuple[int, ...]]:
        return [
            fill_canvas(
                model, "", GRAMMAR, canvas=SLOTS, policy=policy, sampler=sampler, seed=seed, temperature=3
            ).tokens
            for seed in range(12)
        ]

    sampled = texts(Posterior())
    assert sampled == texts(Posterior())
    assert len(set(sampled)) > 1
    if policy != Static(remasking="random"):
        assert len(set(texts(Dingo()))) == 1


@pytest.mark.nightly
def test_all_at_once_is_a_draw_from_the_distribution_given_the_language() -> None:
    """One step that commits everything agrees with enumeration over 4,000 seeds: chi-square, alpha 1e-6.

    The same test rejects draws in which a counted tail costs nothing, so it has power.
    """
    toy = ToyCanvases("a{1,3}|b", 3)
    rng = np.random.Generator(np.random.PCG64(11))
    logits = rng.normal(size=(3, VOCABULARY.size))
    model = ScriptedDiffusion(lambda canvas: logits)
    grammar = sg.regex("a{1,3}|b")
    logs = log_softmax(logits.astype(np.float32))

    def statistic(sampled: Counter[tuple[int, ...]], tail: str) -> float:
        distribution = toy.distribution(logs, tail=tail)
        assert set(sampled) <= set(distribution)
        return sum((sampled[member] - 4000 * chance) ** 2 / (4000 * chance) for member, chance in distribution.items())

    bound = 30.7  # chi-square with 3 degrees of freedom: P(> 30.7) = 1.0e-6
    assert len(toy.members) == 4
    for tail in ("free", "scored"):
        sampled: Counter[tuple[int, ...]] = Counter()
        for seed in range(4000):
            sampler = Posterior(tail=tail)
            result = fill_canvas(model, "", grammar, canvas=3, policy=Static(per_step=3), sampler=sampler, seed=seed)
            assert result.canvas is not None
            assert result.stats.forwards == 1
            sampled[result.canvas.tokens] += 1
        other = "scored" if tail == "free" else "free"
        assert statistic(sampled, tail) < bound < statistic(sampled, other)


def test_scores_are_those_of_the_passes() -> None:
    """``logprob + log_z`` is the model's log-probability of each token when it was committed, from the snapshots."""
    model = HashDiffusion(VOCABULARY, seed=9)
    for sampler in SAMPLERS:
        result, snapshots = watched(model, GRAMMAR, canvas=SLOTS, sampler=sampler, temperature=1.0)
        denoiser = model.start([])
        expected = 0.0
        for before, after in pairwise(snapshots):
            asked = np.where(before.canvas == FREE, MASK, before.canvas)[None].astype(np.int32)
            logs = log_softmax(denoiser.denoise(asked)[0])
            member = len(result.tokens) + (len(result.tokens) < SLOTS)
            chosen = [slot for slot in set(after.committed) - set(after.forced) if slot < member]
            expected += sum(logs[slot, after.canvas[slot]] for slot in chosen)
        assert result.logprob + result.log_z == pytest.approx(expected, abs=1e-4)
        assert result.logprob < 0
        assert result.unscored == sum(step.forced for step in result.steps)


def test_confidence_is_that_of_constrained_marginals() -> None:
    """Both slots prefer a full stop but the language allows one: the confidence is the constrained marginal.

    The mass of '1.' is 0.4 * 0.7, that of '.1' is 0.6 * 0.3; so '1' in the first slot has 28/46, not 0.4.
    """
    chances = np.full((2, VOCABULARY.size), 1e-30)
    chances[0, [4, 5]] = 0.4, 0.6
    chances[1, [4, 5]] = 0.3, 0.7
    model = ScriptedDiffusion(lambda canvas: np.log(chances))
    run = new_run(model, r"1\.|\.1", 2)
    denoised = run.denoise()
    assert denoised.completion.tokens.tolist() == [4, 5]
    assert denoised.confidence == pytest.approx([28 / 46, 28 / 46])
    assert denoised.posterior.marginals(0)[5] == pytest.approx(18 / 46)
    assert fill_canvas(model, "", sg.regex(r"1\.|\.1"), canvas=2, policy=Threshold(0.5)).text == "1."


class Independent:
    """Commits the best allowed token of every slot independently, which ignores the joint constraint."""

    lossless = False

    def start(self) -> Independent:
        return self

    def advance(self, run: CanvasRun, /) -> None:
        distribution = run.distribution()
        masks = run.language.masks(run.canvas)
        tokens = run.canvas.copy()
        for slot in run.free.tolist():
            allowed = [
                token for token in range(len(distribution.logits[0])) if masks[slot, token >> 5] >> (token & 31) & 1
            ]
            tokens[slot] = max(allowed, key=lambda token: distribution.log_probs(slot)[token])
        run.commit(run.free, Completion(tokens, 0.0))


def test_independent_commits_are_refused() -> None:
    """Tokens that are allowed alone but not together never come out, even from a policy that commits them."""
    chances = np.full((2, VOCABULARY.size), 1e-30)
    chances[:, 5] = 0.6
    chances[:, 4] = 0.4
    model = ScriptedDiffusion(lambda canvas: np.log(chances))
    with pytest.raises(GenerationError, match="no string of the grammar"):
        fill_canvas(model, "", sg.regex(r"1\.|\.1"), canvas=2, policy=Independent())


def test_the_end_is_committed_last() -> None:
    """With many spare slots, padding costs nothing and does not fix the length first."""
    model = HashDiffusion(VOCABULARY, writes="abab", context=0.5)
    grammar = sg.regex("(a|b)+")
    result, snapshots = watched(model, grammar, canvas=60)
    assert result.text == "abab"
    assert result.canvas is not None
    member = len(result.tokens)
    assert result.stats.forwards <= member + 1
    assert member in result.canvas.commits[-1]
    assert not any(0 in snapshot.canvas for snapshot in snapshots[:-1])
    # By confidence alone padding would come first, so confidence must not decide here.
    confidence = new_run(model, "(a|b)+", 60).denoise().confidence
    assert int(confidence.argmax()) > member


def test_zero_in_half_precision_still_completes() -> None:
    """Rows whose allowed tokens are all minus infinity count as 80 nats below the best token, so mass remains."""
    logits = np.full((4, VOCABULARY.size), -np.inf)
    logits[:, 5] = 0.0
    for sampler in SAMPLERS:
        for policy in POLICIES:
            model = ScriptedDiffusion(lambda canvas: logits)
            text = fill_canvas(model, "", sg.regex("(a|b){3,4}"), canvas=4, policy=policy, sampler=sampler).text
            assert re.fullmatch("(a|b){3,4}", text)


def test_a_canvas_may_be_given() -> None:
    """Fixed slots stay, ``FREE`` and MASK are the same, and a full canvas costs no pass."""
    model = HashDiffusion(VOCABULARY, seed=4)
    for hole in (FREE, MASK):
        result = fill_canvas(model, "", sg.regex("(a|b){5}"), canvas=[2, hole, hole, 2, 1])
        assert result.text[0] + result.text[-2:] == "bba"
        assert len(result.text) == 5
    full = fill_canvas(model, "", GRAMMAR, canvas=[1, 2, 0])
    assert (full.text, full.stats.forwards, full.finish_reason) == ("ab", 0, "stop")
    assert [(step.token, step.log_z) for step in full.steps] == [(1, None), (2, None), (None, None)]
    forced = fill_canvas(model, "", GRAMMAR, canvas=[4, 5, FREE, FREE, 4, FREE])
    assert (forced.text, forced.stats.forwards, forced.stats.forced) == ("1.1.1", 0, 2)


def test_the_reason_of_the_end() -> None:
    """The reason is ``length`` if the size of the canvas excluded some token."""
    model = HashDiffusion(VOCABULARY, writes="abababab")
    assert fill_canvas(model, "", sg.regex("[ab]*"), canvas=3).finish_reason == "length"
    assert fill_canvas(model, "", sg.regex("(ab){3}"), canvas=3).finish_reason == "stop"
    assert fill_canvas(model, "", sg.regex("[ab]{6,}"), canvas=9).finish_reason == "stop"


def test_snapshots_begin_before_the_first_pass() -> None:
    """The first snapshot holds the forced tokens, before any forward pass."""
    _, snapshots = watched(HashDiffusion(VOCABULARY), sg.regex("1[.](a|b)"), canvas=4)
    assert snapshots[0].forwards == 0
    assert snapshots[0].canvas.tolist() == [4, 5, FREE, 0]
    assert snapshots[0].committed.tolist() == snapshots[0].forced.tolist() == [0, 1, 3]
    assert shown_canvas(snapshots[0].canvas, VOCABULARY) == "1.·"


class AllLive:
    """Reuses nothing, but calls the methods of a model that could."""

    lossless = True

    def live_slots(self, block: Any, before: Any, canvas: Any, /, *, step: int) -> Any:
        return np.ones(len(canvas), dtype=bool)


def test_reuse_of_keys_and_values() -> None:
    """Passes over live slots give strings of the language; with all slots live they equal whole passes."""
    grammar = sg.regex("(a|b){3,8}")
    for seed in range(5):
        model = HashDiffusion(VOCABULARY, seed=seed)
        whole = fill_canvas(model, "", grammar, canvas=8, block=4)
        assert fill_canvas(model, "", grammar, canvas=8, block=4, reuse=AllLive()).tokens == whole.tokens
        for reuse in (DualReuse(), PrefixReuse()):
            assert re.fullmatch("(a|b){3,8}", fill_canvas(model, "", grammar, canvas=8, block=4, reuse=reuse).text)
    with pytest.raises(GenerationError, match="keeps no keys and values"):
        fill_canvas(ScriptedDiffusion(lambda canvas: None), "", grammar, canvas=8, reuse=DualReuse())


def test_an_interruption_says_how_far_it_came() -> None:
    """The note shows the canvas, and the denoiser is closed."""
    model = ScriptedDiffusion(lambda canvas: np.zeros((len(canvas), VOCABULARY.size)))

    def interrupt(snapshot: Snapshot) -> None:
        if snapshot.forwards:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        fill_canvas(model, "", sg.regex("a(a|b){3}"), canvas=4, stream=interrupt)
    assert "2 of 4 slots free" in caught.value.__notes__[0]
    assert "a" in caught.value.__notes__[0]
    assert model.closed == 1


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        # One token per edge: on and stop weigh 1 each, so more than n further tokens have probability 2^-(n+1): n = 1.
        ("a*", 8),
        ("a{7,}", 8),
        ("a{8,}", 16),
        ("a{0,6}", 6),
        ("", 1),
        # Two tokens lead on, so they weigh log2(3): (1.585 / 2.585)^(n + 1) <= 1/4 from n = 2 on.
        ("[1.]{6,}", 8),
        ("[1.]{7,}", 16),
        ("[1.]{0,5}", 5),
    ],
)
def test_canvas_lengths(pattern: str, expected: int) -> None:
    """The length rule agrees with results worked out by hand."""
    assert canvas_length.canvas_length(canvas_language(compile(sg.regex(pattern), VOCABULARY))) == expected


@pytest.mark.exhaustive
def test_canvas_lengths_cover_the_walks() -> None:
    """Three of four walks fit; the walks are simulated letter by letter with Python's regular expressions.

    5,000 walks: a share of 0.75 has a standard error of 0.0061, and 4.9 of these is alpha 1e-6. All tokens are letters;
    those that lead to the same rest are one edge.
    """
    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in range(97, 117)), b""], eos=[0], special={21: "<mask>"})
    constraint = compile(sg.regex("[a-o]{9,}(p[a-c])*"), vocabulary)
    rng = np.random.Generator(np.random.PCG64(5))
    known: dict[Any, Any] = {}

    def edges(text: str) -> tuple[list[tuple[float, str]], bool]:
        key = (min(len(re.match("[a-o]*", text)[0]), 9), text[-1:] == "p", "p" in text)  # type: ignore[index]
        if key not in known:
            groups: dict[str, list[str]] = {}
            for letter in "abcdefghijklmnopqrst":
                rest = re.fullmatch(r"[a-o]{0,9}|[a-o]{9,}((p[a-c])*p?)", text + letter)
                if rest:
                    groups.setdefault("p" if letter == "p" else "other", []).append(letter)
            is_member = re.fullmatch("[a-o]{9,}(p[a-c])*", text) is not None
            known[key] = [(math.log2(1 + len(each)), each[0]) for each in groups.values()], is_member
        return known[key]

    lengths = []
    for _ in range(5000):
        text = ""
        while True:
            options, ends = edges(text)
            weights = np.array([weight for weight, _ in options] + [float(ends)])
            at = int(rng.choice(len(weights), p=weights / weights.sum()))
            if at == len(options):
                break
            text += options[at][1]
        lengths.append(len(text))
    found = canvas_length.canvas_length(canvas_language(constraint))
    needed = int(np.quantile(lengths, 0.75 - 4.9 * 0.0061)), int(np.quantile(lengths, 0.75 + 4.9 * 0.0061))
    assert -(-needed[0] // 8) * 8 <= found <= -(-needed[1] // 8) * 8
    assert np.mean(np.array(lengths) <= found) > 0.75 - 4.9 * 0.0061
    assert needed[0] > 8


def test_canvas_lengths_fit() -> None:
    """By default the canvas can hold a string, is a number of whole blocks, and is bounded by the context."""
    model = HashDiffusion(VOCABULARY, max_context=12)
    result = fill_canvas(model, "ab", sg.regex("[ab1.]{9,}"))
    assert result.canvas is not None
    assert result.canvas.slots == 11
    blocks = fill_canvas(HashDiffusion(VOCABULARY), "", sg.regex("[ab1.]{2,}"), block=5).canvas
    assert blocks is not None
    assert blocks.slots % 5 == 0
    long = fill_canvas(HashDiffusion(VOCABULARY), "", sg.regex("(ab){300}")).canvas
    assert long is not None
    assert long.slots == 300
    with pytest.raises(ValueError, match="max_slots must be at least 1"):
        canvas_length.canvas_length(canvas_language(compile(GRAMMAR, VOCABULARY)), max_slots=0)


def new_run(model: Any, pattern: str, slots: int, **options: Any) -> CanvasRun:
    """A run on an empty canvas."""
    return CanvasRun(
        model.start([]),
        model.mask_token,
        canvas_language(compile(sg.regex(pattern), model.vocabulary)),
        np.full(slots, FREE, dtype=np.int32),
        sampler=Dingo(),
        generator=np.random.Generator(np.random.PCG64(0)),
        **options,
    )


def test_commits_are_checked() -> None:
    """A completion of another canvas, a fixed slot or a missing slot is refused and changes nothing."""
    run = new_run(HashDiffusion(VOCABULARY), "(a|b){4}", 4)
    first = run.denoise().completion
    run.commit(np.array([0]), first)
    other = first.tokens.copy()
    other[0] = 3 - other[0]
    before = run.canvas.copy()
    with pytest.raises(ValueError, match="fixed slot"):
        run.commit(np.array([1]), Completion(other, 0.0))
    for slots in ([0], []):
        with pytest.raises(ValueError, match="all free"):
            run.commit(np.array(slots, dtype=np.intp), first)
    assert np.array_equal(before, run.canvas)


class Idle:
    """Commits nothing."""

    lossless = True

    def start(self) -> Idle:
        return self

    def advance(self, run: CanvasRun, /) -> None:
        run.denoise()


def refused(kind: type[Exception], match: str, **options: Any) -> None:
    """Check that ``fill_canvas`` raises before the model is asked."""
    asked: list[Any] = []

    def logits(canvas: Any) -> Any:
        asked.append(canvas)
        return np.zeros((len(canvas), VOCABULARY.size))

    arguments: dict[str, Any] = {"model": ScriptedDiffusion(logits), "prompt": "ab", "grammar": GRAMMAR, **options}
    with pytest.raises(kind, match=match):
        fill_canvas(arguments.pop("model"), arguments.pop("prompt"), arguments.pop("grammar"), **arguments)
    assert not asked


@pytest.mark.parametrize(
    ("kind", "match", "options"),
    [
        (BudgetError, r"canvas=1: the shortest output .* takes 2 tokens; allow at least canvas=2",
         {"grammar": sg.regex("(a|b)(1|[.])"), "canvas": 1}),
        (BudgetError, "allow at least canvas=4", {"grammar": sg.regex("(1[.]){2}"), "canvas": [4, FREE]}),
        (GrammarError, "it matches no string", {"grammar": sg.regex("a") & sg.regex("b")}),
        (GenerationError, r"slot 1: .*token 4, b'1'.*2 of them free", {"canvas": [1, 4, FREE, FREE]}),
        (GenerationError, "slot 3: ", {"canvas": [FREE, FREE, 1, 5, FREE]}),
        (GenerationError, r"slot 0: .*token 0, b''", {"canvas": [0, FREE]}),
        (GenerationError, "exceed its context by 2 tokens.*allow at most canvas=5",
         {"model": ScriptedDiffusion(lambda canvas: None, max_context=6), "canvas": 7}),
        (GenerationError, "exceed its context by 1 token;.*shorten the prompt$",
         {"model": ScriptedDiffusion(lambda canvas: None, max_context=3), "prompt": "1.1.1"[:3]}),
        (ModelError, "no MASK", {"model": ScriptedDiffusion(lambda canvas: None, mask_token=None)}),
        (ModelError, "no special token", {"model": ScriptedDiffusion(lambda canvas: None, mask_token=1)}),
        (ModelError, "it is an EOS", {"model": ScriptedDiffusion(lambda canvas: None, mask_token=0)}),
        (TypeError, "DiffusionModel, found HashModel", {"model": HashModel(VOCABULARY)}),
        (TypeError, "Grammar or a Constraint; found the text", {"grammar": "(a|b)*"}),
        (TypeError, "CommitPolicy, found 0.9", {"policy": 0.9}),
        (TypeError, "CanvasSampler, found Greedy", {"sampler": sg.Greedy()}),
        (ValueError, "temperature must be positive", {"temperature": 0}),
        (ValueError, "temperature must be positive", {"temperature": math.nan}),
        (ValueError, "block must be", {"block": 0}),
        (ValueError, "block must be", {"block": 2.5}),
        (ValueError, "at least 1 slot", {"canvas": 0}),
        (ValueError, "row of token ids", {"canvas": [[1, 2]]}),
        (ValueError, "row of token ids", {"canvas": [1.5]}),
        (ValueError, "row of token ids", {"canvas": True}),
        (ValueError, "slot 1 holds 99, which is no token id", {"canvas": [1, 99]}),
        (ValueError, "slot 0 holds -2", {"canvas": [-2, 1]}),
        (GrammarError, "must differ",
         {"grammar": sg.json_schema({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
          "model": HashDiffusion(Vocabulary([b"", *(bytes([b]) for b in range(256)), b""], eos=[0],
                                            special={257: "<mask>"}))}),
    ],
)  # fmt: skip
def test_bad_input_is_refused_before_the_model_is_asked(
    kind: type[Exception], match: str, options: dict[str, Any]
) -> None:
    """Each message says what was found and what to do."""
    refused(kind, match, **options)


def test_another_vocabulary_is_refused() -> None:
    """A constraint works only with its own vocabulary."""
    other = Vocabulary([b"", b"a", b"b", b""], eos=[0], special={3: "<mask>"})
    refused(VocabularyError, "another vocabulary", grammar=compile(sg.regex("a|b"), other))


def test_a_grammar_that_asks_for_mask_is_refused() -> None:
    """MASK in the output could not be told from a free slot."""
    grammar = sequence("a", SpecialToken("<mask>"))
    with pytest.raises(GenerationError, match="asks for MASK"):
        fill_canvas(HashDiffusion(VOCABULARY), "", grammar, canvas=3)


def test_failures_of_models_and_policies_are_named() -> None:
    """Wrong shapes, NaN, and a policy that never commits are errors with a name."""

    def failing(logits: Any, match: str) -> None:
        with pytest.raises(GenerationError, match=match):
            fill_canvas(ScriptedDiffusion(lambda canvas: logits), "", GRAMMAR, canvas=4)

    failing(np.zeros((4, 3)), r"shape \(1, 4, 7\).*found \(1, 4, 3\)")
    failing(np.zeros((3, 7)), r"found \(1, 3, 7\)")
    failing(np.full((4, 7), np.nan), "no distribution over tokens")
    failing(np.full((4, 7), np.inf), "no distribution over tokens")
    with pytest.raises(GenerationError, match=r"at least one slot.*Idle"):
        fill_canvas(HashDiffusion(VOCABULARY), "", GRAMMAR, canvas=4, policy=Idle())
