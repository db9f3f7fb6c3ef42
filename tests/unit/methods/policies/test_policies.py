"""Commit policies: each rule recomputed from all canvases, its savings, and its promises."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from toy_canvases import FREE, MASK, VOCABULARY, ScriptedDiffusion, ToyCanvases, log_softmax

import structgen as sg
from structgen.decode.diffusion import (
    CanvasRun,
    CommitPolicy,
    Dingo,
    Factor,
    Posterior,
    Static,
    Threshold,
    canvas_language,
    fill_canvas,
    rank_slots,
)
from structgen.engine import Vocabulary, compile
from structgen.methods.policies import CreditDecoding, EntropyBound, Explore, Learned, LocalLeap, Prophet
from structgen.models.diffusion import HashDiffusion, HiddenMarkovDiffusion

PATTERN = r"(a|b){2,4}|1(\.1){0,2}"
SLOTS = 5
TOY = ToyCanvases(PATTERN, SLOTS)


class Confident:
    """A filter that treats the top token as final where it is at least so probable."""

    def __init__(self, confidence: float) -> None:
        self.confidence = confidence
        self.seen: list[Any] = []

    def settled(self, views: Any, /) -> NDArray[np.float64]:
        self.seen.append(views)
        found: NDArray[np.float64] = np.where(views[-1].confidences >= self.confidence, 0.95, 0.05)
        return found


LOSSY: list[Any] = [
    Static(steps=2),
    Static(per_step=2),
    Threshold(),
    Factor(),
    Prophet(),
    Prophet(over="completion"),
    CreditDecoding(),
    LocalLeap(),
    EntropyBound(),
    Explore(),
    Learned(Confident(0.9)),
]


def new_run(model: Any, pattern: str, slots: int, *, sampler: Any = None, **options: Any) -> CanvasRun:
    """A run on an empty canvas."""
    return CanvasRun(
        model.start([]),
        model.mask_token,
        canvas_language(compile(sg.regex(pattern), model.vocabulary)),
        np.full(slots, FREE, dtype=np.int32),
        sampler=sampler or Dingo(),
        generator=np.random.Generator(np.random.PCG64(0)),
        **options,
    )


class Brute:
    """The result of a pass over a canvas, from all strings that agree with the fixed slots."""

    def __init__(self, model: HashDiffusion, canvas: NDArray[np.int32]) -> None:
        asked = np.where(canvas == FREE, MASK, canvas)[None].astype(np.int32)
        distribution = TOY.distribution(log_softmax(model.start([]).denoise(asked)[0]), canvas=canvas.tolist())
        self.canvas = canvas
        self.marginals = TOY.marginals(distribution, VOCABULARY.size)
        self.best = max(distribution, key=lambda member: distribution[member])
        self.share = distribution[self.best]
        self.confidence = self.marginals[np.arange(SLOTS), self.best]
        logs = np.log(np.where(self.marginals > 0, self.marginals, 1.0))
        self.entropy = -(self.marginals * logs).sum(axis=1)
        end = TOY.length(self.best)
        free = [slot for slot in range(SLOTS) if canvas[slot] == FREE]
        self.content = [slot for slot in free if slot < end]
        self.end = [end] if end in free else []

    def ordered(self, scores: NDArray[np.float64]) -> list[int]:
        """Content by falling scores, then the end."""
        return sorted(self.content, key=lambda slot: (-scores[slot], slot)) + self.end

    def after(self, slots: list[int]) -> tuple[int, ...]:
        """The canvas after a commit and the slots that it forces."""
        canvas = self.canvas.tolist()
        for slot in slots:
            canvas[slot] = self.best[slot]
        return TOY.forced(canvas)


def passing(brute: Brute, needed: dict[int, float]) -> list[int]:
    """Slots that pass the threshold, or else the most confident; the end comes with the last content."""
    first, *others = brute.ordered(brute.confidence)
    chosen = [first, *(slot for slot in others if brute.confidence[slot] >= needed[slot])]
    if not set(brute.content) <= set(chosen):
        chosen = [slot for slot in chosen if slot not in brute.end]
    return chosen


def expect_threshold(brute: Brute, policy: Threshold, was_forced: set[int]) -> list[int]:
    return passing(brute, dict.fromkeys(range(SLOTS), policy.confidence))


def expect_local_leap(brute: Brute, policy: LocalLeap, was_forced: set[int]) -> list[int]:
    sure = {slot for slot in brute.content + brute.end if brute.confidence[slot] >= policy.anchor}
    needed = {}
    for slot in range(SLOTS):
        near = min((abs(slot - anchor) for anchor in sure | was_forced), default=99)
        step = (policy.anchor - policy.relaxed) / policy.window
        needed[slot] = policy.relaxed + (near - 1) * step if 1 <= near <= policy.window else policy.anchor
    return passing(brute, needed)


def expect_factor(brute: Brute, policy: Factor, was_forced: set[int]) -> list[int]:
    order = brute.ordered(brute.confidence)
    fits = [
        count
        for count in range(1, len(order) + 1)
        if (count + 1) * (1 - min(brute.confidence[order[:count]])) < policy.factor
    ]
    return order[: max(fits, default=1)]


def expect_entropy_bound(brute: Brute, policy: EntropyBound, was_forced: set[int]) -> list[int]:
    order = brute.ordered(-brute.entropy)
    fits = [
        count
        for count in range(1, len(order) + 1)
        if sum(brute.entropy[order[:count]]) - max(brute.entropy[order[:count]]) <= policy.bound
    ]
    return order[: max(fits)]


def expect_prophet(brute: Brute, policy: Prophet, was_forced: set[int]) -> list[int]:
    if policy.over == "completion":
        gap = math.log(brute.share / (1 - brute.share)) if brute.share < 1 else 80
    else:
        tops = np.sort(brute.marginals[brute.content + brute.end], axis=1)[:, -2:]
        gap = float(np.mean([math.log(first / second) if second else 80.0 for second, first in tops]))
    everything = [slot for slot in range(SLOTS) if brute.canvas[slot] == FREE]
    third = min(2, 3 * (SLOTS - len(everything)) // SLOTS)
    return everything if gap >= policy.gaps[third] else brute.ordered(brute.confidence)[:1]


def expect_explore(brute: Brute, policy: Explore, was_forced: set[int]) -> list[int]:
    sure = any(brute.confidence[slot] >= policy.confidence for slot in brute.content + brute.end)
    chosen = passing(brute, dict.fromkeys(range(SLOTS), policy.confidence)) if sure else []
    bits = -sum(math.log2(brute.confidence[slot]) for slot in chosen)
    open_ = [s for s in brute.content if s not in chosen and brute.confidence[s] >= policy.least]
    if bits < policy.bits and open_:
        chosen = [*chosen, min(open_, key=lambda slot: (-brute.entropy[slot], slot))]
    return chosen or brute.ordered(brute.confidence)[:1]


@pytest.mark.parametrize(
    ("policy", "expect"),
    [
        (Threshold(0.7), expect_threshold),
        (Threshold(0.4), expect_threshold),
        (LocalLeap(0.8, 0.3, 2), expect_local_leap),
        (LocalLeap(0.6, 0.5, 4), expect_local_leap),
        (Factor(1.0), expect_factor),
        (Factor(2.5), expect_factor),
        (EntropyBound(0.0), expect_entropy_bound),
        (EntropyBound(0.9), expect_entropy_bound),
        (Prophet((1.5, 1.0, 0.5)), expect_prophet),
        (Prophet((0.5, 0.2, 0.1), over="completion"), expect_prophet),
        (Explore(0.7, 1.5, 0.3), expect_explore),
        (Explore(0.8, 0.0), expect_explore),
    ],
    ids=lambda value: repr(value) if isinstance(value, CommitPolicy) else "",
)
def test_each_rule_is_what_it_says(policy: Any, expect: Any) -> None:
    """Each commit of whole runs follows the rule, for marginals summed over all strings."""
    sizes = set()
    for seed in range(8):
        model = HashDiffusion(VOCABULARY, seed=seed)
        run = new_run(model, PATTERN, SLOTS)
        committer = policy.start()
        while len(run.free):
            brute = Brute(model, run.canvas.copy())
            slots = expect(brute, policy, set(np.flatnonzero(run.was_forced).tolist()))
            sizes.add(len(slots))
            committer.advance(run)
            assert tuple(run.canvas.tolist()) == brute.after(slots)
    assert len(sizes) > 1 or policy == EntropyBound(0.0)


@pytest.mark.parametrize(("steps", "block", "sizes"), [(3, None, [3, 2, 2]), (2, 4, [2, 2, 2, 1]), (9, None, [1] * 7)])
def test_static_spreads_slots_over_steps(steps: int, block: int | None, sizes: list[int]) -> None:
    """Of ``m`` slots, ``m

    steps`` come in each step and one more in the first ``m % steps``.
    """
    model = HashDiffusion(VOCABULARY)
    result = fill_canvas(model, "", sg.regex(r"(1|\.){7}"), canvas=7, policy=Static(steps=steps), block=block)
    assert result.canvas is not None
    assert [len(commit) for commit in result.canvas.commits] == sizes
    assert result.stats.forwards == len(sizes)


def test_static_takes_the_surest_slot_or_any() -> None:
    """Confidence is that of the language's marginals; random slots depend on the seed."""
    model = HashDiffusion(VOCABULARY, seed=1)
    run = new_run(model, PATTERN, SLOTS)
    brute = Brute(model, run.canvas.copy())
    Static().start().advance(run)
    assert tuple(run.canvas.tolist()) == brute.after(brute.ordered(brute.confidence)[:1])
    first = set()
    for seed in range(20):
        result = fill_canvas(model, "", sg.regex(r"(1|\.){4}"), canvas=4, policy=Static(remasking="random"), seed=seed)
        assert result.canvas is not None
        first.add(result.canvas.commits[0])
    assert first == {(0,), (1,), (2,), (3,)}


def test_the_end_comes_last_in_every_ranking() -> None:
    """This holds for any scores, and slots after the end are not in the ranking."""
    run = new_run(HashDiffusion(VOCABULARY, writes="ab"), "(a|b)*", 6)
    denoised = run.denoise()
    assert denoised.completion.tokens.tolist() == [3, 0, 0, 0, 0, 0]
    ranking = rank_slots(run, denoised, np.arange(6.0))
    assert (ranking.slots.tolist(), ranking.ends) == ([0, 1], True)
    assert ranking.passing(np.array([False, True])).tolist() == [0, 1]
    assert ranking.front(0).tolist() == [0]
    run = new_run(HashDiffusion(VOCABULARY, writes="a1.a"), r"(a|1|\.)*", 6)
    ranking = rank_slots(run, run.denoise(), np.arange(6.0))
    assert ranking.slots.tolist() == [3, 2, 1, 0, 4]
    assert ranking.passing(np.array([False, True, False, True, True])).tolist() == [3, 2, 0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("policy", LOSSY, ids=repr)
def test_passes_are_saved_where_slots_do_not_mind_each_other(policy: Any, json_vocabulary: Vocabulary) -> None:
    """Without context the order of commits cannot matter: two thirds of the passes give the same output."""
    tokens = [*json_vocabulary.tokens, b""]
    vocabulary = Vocabulary(tokens, eos=list(json_vocabulary.eos), special={len(tokens) - 1: "<mask>"})
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    constraint = compile(sg.json_schema(schema), vocabulary)
    passes = []
    for wish in ('{"name": "Grace", "age": 85}', '{"name": "", "age": 3}', '{"name": "x", "age": oops}'):
        model = HashDiffusion(vocabulary, context=0, writes=wish)
        slow = fill_canvas(model, "", constraint, canvas=32)
        fast = fill_canvas(model, "", constraint, canvas=32, policy=policy)
        assert fast.canvas is not None
        assert slow.canvas is not None
        assert fast.canvas.tokens == slow.canvas.tokens
        assert fast.stats.forwards <= slow.stats.forwards
        passes.append((fast.stats.forwards, slow.stats.forwards))
        json.loads(fast.text)
    assert 3 * sum(fast for fast, _ in passes) < 2 * sum(slow for _, slow in passes)


def argmax_of_joint(distribution: dict[tuple[int, ...], float], slots: tuple[int, ...]) -> tuple[int, ...]:
    """The most probable joint choice of some slots."""
    masses: dict[tuple[int, ...], float] = {}
    for member, chance in distribution.items():
        key = tuple(member[slot] for slot in slots)
        masses[key] = masses.get(key, 0.0) + chance
    return max(masses, key=lambda key: masses[key])


def test_the_bound_of_the_theorem() -> None:
    """With n tokens of marginals above 1 - e and (n + 1) e <= 1, the product's best choice is the joint's.

    The joint is the distribution given the language, so the slots depend on each other; all subsets of slots of 400
    distributions are tested. Where the bound does not hold, the conclusion fails somewhere, so the premise is needed.
    """
    rng = np.random.Generator(np.random.PCG64(3))
    held = failed = 0
    for _ in range(400):
        sharpness = rng.uniform(0.5, 4)
        distribution = TOY.distribution(log_softmax(sharpness * rng.normal(size=(SLOTS, VOCABULARY.size))))
        marginals = TOY.marginals(distribution, VOCABULARY.size)
        best, chance = marginals.argmax(axis=1), marginals.max(axis=1)
        for count in range(2, SLOTS + 1):
            for slots in itertools.combinations(range(SLOTS), count):
                agrees = argmax_of_joint(distribution, slots) == tuple(best[list(slots)])
                if (count + 1) * (1 - chance[list(slots)].min()) < 1:
                    held += 1
                    assert agrees
                else:
                    failed += not agrees
    assert held > 500
    assert failed > 20


@pytest.mark.exhaustive
def test_factor_of_one_commits_the_best_joint_choice_of_the_true_distribution() -> None:
    """This is on a hidden Markov model, whose joint distribution is known.

    The policy commits its most probable choice of the slots.

    Its distributions of single slots are exact, and the language is its whole support, so the theorem is about the true
    distribution. ``Threshold(0.4)`` does not keep the bound, and commits something else somewhere.
    """
    rng = np.random.Generator(np.random.PCG64(17))
    slots, several, wrong = 4, 0, 0
    for _ in range(60):
        emission = np.zeros((3, VOCABULARY.size))
        emission[:, [1, 2, 4]] = rng.dirichlet([0.15] * 3, size=3)
        model = HiddenMarkovDiffusion(
            VOCABULARY, rng.dirichlet([0.5] * 3), rng.dirichlet([0.3] * 3, size=3), emission, slots=slots
        )
        distribution = {member: model.joint(member) for member in itertools.product((1, 2, 4), repeat=slots)}
        for policy in (Factor(1.0), Threshold(0.4)):
            run = new_run(model, "[ab1]{4}", slots)
            policy.start().advance(run)
            chosen = tuple(np.flatnonzero(run.canvas != FREE).tolist())
            agrees = argmax_of_joint(distribution, chosen) == tuple(run.canvas[list(chosen)].tolist())
            if isinstance(policy, Factor):
                assert agrees
                several += len(chosen) > 1
            else:
                wrong += not agrees
    assert several > 20
    assert wrong > 0


def test_credit_brings_steady_tokens_over_the_threshold() -> None:
    """A token that stays the best is committed earlier than by the threshold alone; zero credit changes nothing."""
    logits = np.zeros((8, VOCABULARY.size))
    logits[:, 1] = 2.5  # probability 0.72 of 'a' given the language: below the threshold, again and again
    model = ScriptedDiffusion(lambda canvas: logits)
    grammar = sg.regex("(a|b|1|[.]){8}")

    def forwards(policy: Any) -> int:
        result = fill_canvas(model, "", grammar, canvas=8, policy=policy)
        assert result.text == "a" * 8
        return result.stats.forwards

    assert forwards(Threshold(0.9)) == 8
    assert forwards(CreditDecoding(0.9, weight=0.0)) == 8
    assert forwards(CreditDecoding(0.9, weight=1.0, decay=0.9)) < 5


def test_credit_goes_to_what_the_language_allows() -> None:
    """However likely another token is for the model, a token that no string has there earns nothing."""
    logits = np.zeros((SLOTS, VOCABULARY.size))
    logits[:, 5] = 9.0
    model = ScriptedDiffusion(lambda canvas: logits)
    for sampler in (Dingo(), Posterior()):
        run = new_run(model, PATTERN, SLOTS, sampler=sampler)
        committer = CreditDecoding(0.99).start()
        while len(run.free):
            members = TOY.agreeing(run.canvas)
            committer.advance(run)
            for slot, credits in committer._credits.items():
                newest = max(credits, key=lambda token: credits[token])
                assert newest in members[:, slot]
        assert tuple(run.canvas.tolist()) in TOY.members


def test_learned_reads_marginals_and_commits_what_is_settled() -> None:
    """The filter sees the top tokens of the marginals given the language; the slots that it settles are committed."""
    filter_ = Confident(0.6)
    model = HashDiffusion(VOCABULARY, seed=1)
    run = new_run(model, PATTERN, SLOTS)
    committer = Learned(filter_, history=2).start()
    while len(run.free):
        brute = Brute(model, run.canvas.copy())
        committer.advance(run)
        view = filter_.seen[-1][-1]
        tops = np.sort(brute.marginals, axis=1)
        free = brute.canvas == FREE
        assert np.array_equal(view.free, free)
        assert view.tokens.tolist() == np.where(free, brute.marginals.argmax(axis=1), brute.canvas).tolist()
        assert view.confidences == pytest.approx(np.where(free, tops[:, -1], 1.0), abs=1e-6)
        assert view.seconds == pytest.approx(np.where(free, tops[:, -2], 0.0), abs=1e-6)
        final = [s for s in brute.content if tops[s, -1] >= 0.6 and brute.best[s] == brute.marginals[s].argmax()]
        assert set(final) <= set(np.flatnonzero(run.canvas != FREE).tolist())
    assert max(map(len, filter_.seen)) == 2


def test_learned_takes_the_filter_of_the_embedded_model() -> None:
    """The network has the shape of a trained one, with weights that need a confidence of one half."""
    pytest.importorskip("torch")
    from structgen.methods.policies.stateful import FEATURES, SlotFilter

    width = len(FEATURES)
    hidden = np.zeros((2, width + 1))
    hidden[0, 0], hidden[1, 0] = 8.0, -8.0  # log odds of the confidence, both signs
    slot_filter = SlotFilter(np.zeros(width), np.ones(width), hidden, np.array([1.0, -1.0, 0.0]))
    model = HashDiffusion(VOCABULARY, seed=1, context=0, writes="abab")
    fast = fill_canvas(model, "", sg.regex("(a|b)+"), canvas=12, policy=Learned(slot_filter))
    slow = fill_canvas(model, "", sg.regex("(a|b)+"), canvas=12)
    assert fast.text == slow.text == "abab"
    assert fast.stats.forwards == 1 < slow.stats.forwards


def test_a_filter_of_another_shape_is_refused() -> None:
    """It must have one number per slot, no fewer."""

    class Short:
        def settled(self, views: Any, /) -> NDArray[np.float64]:
            return np.zeros(2)

    with pytest.raises(ValueError, match=r"must have shape \[5\]; found \(2,\)"):
        fill_canvas(HashDiffusion(VOCABULARY), "", sg.regex(PATTERN), canvas=5, policy=Learned(Short()))


def test_policies_are_values() -> None:
    """They are equal if their settings are, work for several canvases, and report what they change."""
    for policy in [Static(), *LOSSY]:
        assert isinstance(policy, CommitPolicy)
        assert policy.start() is not policy.start()
        for field in fields(policy):
            with pytest.raises(FrozenInstanceError):
                setattr(policy, field.name, None)
    assert Threshold(0.8) == Threshold(0.8) != Threshold(0.9)
    assert len({Static(), Static(), Static(per_step=2)}) == 2
    assert Static().lossless
    assert Static(remasking="random").lossless
    assert not any(policy.lossless for policy in LOSSY)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Static(steps=0), "steps must be at least 1"),
        (lambda: Static(per_step=0), "per_step must be at least 1"),
        (lambda: Static(steps=2, per_step=2), "exclude each other"),
        (lambda: Static(remasking="best"), "'low_confidence' or 'random'; found 'best'"),
        (lambda: Threshold(0.0), "above 0 and at most 1; found 0.0"),
        (lambda: Threshold(1.1), "at most 1"),
        (lambda: Threshold(math.nan), "found nan"),
        (lambda: Factor(0.0), "above 0 and finite"),
        (lambda: Factor(math.inf), "found inf"),
        (lambda: EntropyBound(-0.1), "at least 0 nats"),
        (lambda: EntropyBound(math.nan), "found nan"),
        (lambda: LocalLeap(anchor=0), "anchor must be"),
        (lambda: LocalLeap(0.8, 0.9), "at most anchor=0.8; found 0.9"),
        (lambda: LocalLeap(window=-1), "window must be at least 0"),
        (lambda: Prophet((1.0, 2.0)), "three numbers"),
        (lambda: Prophet((1.0, 2.0, -1.0)), "at least 0"),
        (lambda: Prophet(over="answer"), "'slots' or 'completion'"),
        (lambda: Prophet(per_step=0), "per_step"),
        (lambda: CreditDecoding(0), "confidence"),
        (lambda: CreditDecoding(decay=1.0), "decay"),
        (lambda: CreditDecoding(weight=-1), "weight"),
        (lambda: CreditDecoding(power=0), "power"),
        (lambda: Explore(confidence=2), "confidence"),
        (lambda: Explore(bits=-1), "bits"),
        (lambda: Explore(least=1.5), "least"),
        (lambda: Learned(0.9), "must have a method settled"),
        (lambda: Learned(Confident(0.5), threshold=0), "threshold"),
        (lambda: Learned(Confident(0.5), history=0), "history"),
    ],
)
def test_arguments_are_checked(make: Any, match: str) -> None:
    """The error says what is wrong and what was found."""
    with pytest.raises(ValueError, match=match):
        make()
