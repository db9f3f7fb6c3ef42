"""Adaptive parallel decoding: the coupled draws, and how much of a draft is accepted."""

from __future__ import annotations

import math
import random
import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from stepwise_unmasking import LETTERS, a_run, fill, pattern
from toy_canvases import MASK, VOCABULARY, ScriptedDiffusion, ToyCanvases, log_softmax

import structgen as sg
from structgen.decode.diffusion.canvas import canvas_language
from structgen.decode.diffusion.commit_policy import CommitPolicy
from structgen.decode.diffusion.mean_field import FREE
from structgen.decode.diffusion.posterior import CanvasSampler, Dingo, Posterior
from structgen.engine import Vocabulary, compile
from structgen.errors import GenerationError, VocabularyError
from structgen.methods.diffusion_drafting.adaptive_parallel import AdaptiveParallel, mixture, noise_given
from structgen.models import HashModel
from structgen.models.diffusion import HashDiffusion

# the coupling

DRAWS = 20_000
LARGEST_Z = 5.3  # two-sided 1e-6 over 8 tokens


def two_distributions() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Log-probabilities of eight tokens; the first distribution forbids two of them."""
    rng = np.random.default_rng(3)
    log_q, log_a = np.log(rng.dirichlet(np.ones(8))), np.log(rng.dirichlet(np.ones(8)))
    log_q[[2, 5]] = -np.inf
    return log_q - np.logaddexp.reduce(log_q), log_a


def coupled(*, is_coupled: bool = True) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """Tokens of the draft and of the mixture, and the mixture's distribution."""
    log_q, log_a = two_distributions()
    mixed = mixture(log_q, log_a, 0.4)
    generator = np.random.default_rng(11)
    drafted = generator.choice(8, size=DRAWS, p=np.exp(log_q))
    judged = np.empty(DRAWS, dtype=np.intp)
    for at, token in enumerate(drafted.tolist()):
        noise = noise_given(log_q, token, generator) if is_coupled else generator.gumbel(size=8)
        assert not is_coupled or int((log_q + noise).argmax()) == token
        judged[at] = (mixed + noise).argmax()
    return drafted, judged, np.exp(mixed - np.logaddexp.reduce(mixed))


def agreement(q: NDArray[np.float64], m: NDArray[np.float64]) -> float:
    """How often draws that read the same Gumbel noise are equal: for each token, all others lose twice."""
    both = np.flatnonzero((q > 0) & (m > 0))
    return float(sum(1 / np.maximum(q / q[token], m / m[token]).sum() for token in both))


def test_the_mixture_is_sampled_from_as_ever() -> None:
    """Frequencies of its tokens over 20,000 draws have z below 5.3; those of the draft differ."""
    drafted, judged, distribution = coupled()
    spread = np.sqrt(distribution * (1 - distribution) / DRAWS)[distribution > 0]
    found = np.bincount(judged, minlength=8) / DRAWS
    assert (found[distribution == 0] == 0).all()
    assert (np.abs(found - distribution)[distribution > 0] / spread < LARGEST_Z).all()
    other = np.bincount(drafted, minlength=8) / DRAWS
    assert (np.abs(other - distribution)[distribution > 0] / spread > 2 * LARGEST_Z).any()


@pytest.mark.parametrize("is_coupled", [True, False])
def test_how_often_both_take_the_same_token(is_coupled: bool) -> None:
    """It is the probability by which Gumbel noise couples the two distributions, by its formula.

    Independent noise would agree less often.
    """
    log_q, _ = two_distributions()
    drafted, judged, distribution = coupled(is_coupled=is_coupled)
    wanted = agreement(np.exp(log_q), distribution)
    z = (float((drafted == judged).mean()) - wanted) / math.sqrt(wanted * (1 - wanted) / DRAWS)
    assert abs(z) < 5 if is_coupled else z < -10


def test_what_one_distribution_forbids_is_never_taken() -> None:
    log_q, log_a = two_distributions()
    log_a = log_a.copy()
    log_a[1] = -np.inf
    assert np.isneginf(mixture(log_q, log_a, 0.4)[[1, 2, 5]]).all()
    assert np.isneginf(mixture(log_q, log_a, 0.0)[[1, 2, 5]]).all()
    np.testing.assert_allclose(mixture(log_q, log_a, 1.0), log_q)


# on canvases


def logits_of(seed: int, size: int) -> Any:
    return lambda canvas: np.random.default_rng([seed, *(canvas + 1)]).normal(0, 2, (len(canvas), size))


def expected(
    model: ScriptedDiffusion, judge: HashModel, toy: ToyCanvases, canvas: tuple[int, ...], weight: float
) -> tuple[int, ...]:
    """One step without any automaton: the best completion of a canvas, up to the first other argmax of the mixture."""
    masked = np.where(np.array(canvas) == FREE, MASK, canvas).astype(np.int32)
    distributions = log_softmax(model.logits(masked))

    def mass(member: tuple[int, ...], free: list[int]) -> float:
        scored = min(len(member), toy.length(member) + 1)
        return float(sum(distributions[slot, member[slot]] for slot in free if slot < scored))

    free = [slot for slot, token in enumerate(canvas) if token == FREE]
    members = [tuple(member) for member in toy.agreeing(canvas).tolist()]
    best = max(members, key=lambda member: mass(member, free))
    held = list(canvas)
    for at, slot in enumerate(free):
        left = [member for member in members if all(member[s] == best[s] for s in free[:at])]
        if at and slot <= toy.length(best):
            masses = np.full(judge.vocabulary.size, -np.inf)
            for member in left:
                masses[member[slot]] = np.logaddexp(masses[member[slot]], mass(member, free[at:]))
            after = log_softmax(judge.start().extend([judge.vocabulary.eos[0], *best[:slot]]))
            allowed = np.flatnonzero(np.isfinite(masses))
            mixed = weight * masses[allowed] + (1 - weight) * after[allowed]
            if allowed[mixed.argmax()] != best[slot]:
                break
        held[slot] = best[slot]
    # Slots with a single possible token are then filled for free.
    left = [member for member in members if all(token in (FREE, m) for token, m in zip(held, member, strict=True))]
    return tuple(left[0][slot] if len({m[slot] for m in left}) == 1 else held[slot] for slot in range(len(held)))


@pytest.mark.parametrize("weight", [0.0, 0.3, 0.8])
def test_a_step_commits_what_the_mixture_would_have_taken(weight: float) -> None:
    """Sums over all canvases give the same accepted part of the best completion, on random models and grammars."""
    sizes = set()
    for seed in range(25):
        text = ("(a|b|1){6,8}", "[ab]{5}(1|[.])?", "(ab|1|b)[ab]{4}", "[ab]+(1|[.])")[seed % 4]
        language, toy = canvas_language(compile(sg.regex(text), VOCABULARY)), ToyCanvases(text, 5)
        model = ScriptedDiffusion(logits_of(seed, VOCABULARY.size))
        judge = HashModel(VOCABULARY, seed=seed)
        run, seen = a_run(model, language, 5)
        committer = AdaptiveParallel(judge, weight=weight).start()
        while len(run.free):
            before = tuple(run.canvas.tolist())
            committer.advance(run)
            assert tuple(run.canvas.tolist()) == expected(model, judge, toy, before, weight)
            sizes.add(sum(token == FREE for token in before) - len(run.free))
        assert tuple(seen[-1]) in toy.members
    assert len(sizes) >= 3


def test_without_a_grammar_to_speak_of_it_is_the_published_rule() -> None:
    """Slots are independent: each distribution's argmax is accepted up to the mixture's first other argmax."""
    language = canvas_language(compile(sg.regex("[abc]{8}"), LETTERS))
    accepted = []
    for seed in range(20):
        model, judge = HashDiffusion(LETTERS, seed=seed, context=0.5), HashModel(LETTERS, seed=seed)
        run, _ = a_run(model, language, 8)
        committer = AdaptiveParallel(judge, weight=0.7).start()
        committer.advance(run)
        distributions = log_softmax(np.asarray(model.start([]).denoise(np.full((1, 8), 4, dtype=np.int32)))[0][:, 1:4])
        draft = distributions.argmax(axis=1)
        count = 1
        while count < 8:
            after = log_softmax(judge.start().extend([0, *(draft[:count] + 1).tolist()])[1:4])
            if (0.7 * distributions[count] + 0.3 * after).argmax() != draft[count]:
                break
            count += 1
        assert run.canvas.tolist() == [*(draft[:count] + 1), *[FREE] * (8 - count)]
        assert (run.drafted, run.accepted) == (7, count - 1)
        accepted.append(count)
    assert 1 in accepted
    assert max(accepted) > 2


@pytest.mark.parametrize("sampler", [Dingo(), Posterior(), Posterior("scored")])
def test_members_always_and_fewer_passes_with_more_weight(sampler: CanvasSampler) -> None:
    passes = {0.0: 0, 0.5: 0, 1.0: 0}
    for seed in range(12):
        rng = random.Random(seed)
        text = pattern(rng)
        language = canvas_language(compile(sg.regex(text), LETTERS))
        slots = max(9, language.shortest)
        for weight in passes:
            policy = AdaptiveParallel(HashModel(LETTERS, seed=seed), weight=weight, lookahead=rng.choice((None, 5)))
            block = rng.choice((None, None, 4)) if weight < 1 else None
            run, _ = a_run(HashDiffusion(LETTERS, seed=seed), language, slots, sampler=sampler, block=block)
            fill(run, policy)
            tokens = [token for token in run.canvas.tolist() if token]
            assert re.fullmatch(text, LETTERS.decode(tokens).decode())
            assert run.canvas.tolist() == tokens + [0] * (slots - len(tokens))
            passes[weight] += run.denoiser.forwards
    assert passes[1.0] <= passes[0.5] <= passes[0.0]
    assert passes[1.0] < passes[0.0]


def test_everything_stands_where_the_diffusion_model_judges_alone() -> None:
    """With weight 1 both draws come from the same distribution, and no autoregressive pass is spent."""
    language = canvas_language(compile(sg.regex("(ab|c){3,9}"), LETTERS))
    model = HashDiffusion(LETTERS, seed=1)
    for sampler in (Dingo(), Posterior("scored")):
        run, _ = a_run(model, language, 9, sampler=sampler)
        fill(run, AdaptiveParallel(HashModel(LETTERS, max_context=1), weight=1.0))
        assert run.denoiser.forwards == 1
        assert run.drafted == run.accepted


def test_coupled_judging_of_the_same_distribution_takes_everything() -> None:
    """A small model with the diffusion model's distribution agrees with each of its draws, at any weight.

    Judging a draw by the argmax, or by an independent draw, would not.
    """
    language = canvas_language(compile(sg.regex("[ab]{6}"), LETTERS))
    row = np.array([0.0, 1.0, 1.2, 0, 0], dtype=np.float32)
    model = ScriptedDiffusion(lambda canvas: np.tile(row, (len(canvas), 1)), LETTERS, mask_token=4)

    class Same(HashModel):
        def start(self) -> Any:
            session = super().start()
            session.extend_all = lambda tokens: np.tile(row, (len(tokens), 1))
            return session

    for seed in range(20):
        run, _ = a_run(model, language, 6, sampler=Posterior())
        run.generator = np.random.default_rng(seed)
        fill(run, AdaptiveParallel(Same(LETTERS), weight=0.2))
        assert run.denoiser.forwards == 1


def test_the_small_model_reads_its_prompt_and_what_is_fixed_in_one_pass_a_step() -> None:
    """It reads no token twice, except the last one before the draft."""
    read: list[tuple[int, ...]] = []

    class Listening(HashModel):
        def start(self) -> Any:
            session = super().start()
            extend_all = session.extend_all

            def noted(tokens: Any) -> Any:
                rows = extend_all(tokens)
                read.append(tuple(tokens))
                return rows

            session.extend_all = noted
            return session

    language = canvas_language(compile(sg.regex("[abc]{7}"), LETTERS))
    given = np.array([FREE, FREE, 3, FREE, FREE, FREE, FREE], dtype=np.int32)
    policy = AdaptiveParallel(Listening(LETTERS, seed=2), prompt="cab", weight=0.3)
    run, _ = a_run(HashDiffusion(LETTERS, seed=6), language, given)
    committer = policy.start()
    steps = 0
    while len(run.free):
        first, free = int(run.free[0]), len(run.free)
        committer.advance(run)
        steps += 1
        if free > 1:
            assert len(read) == steps
            assert len(read[-1]) >= 6 - first
    assert read[0][:3] == (3, 1, 2)
    assert read[0][5:6] == (3,)  # cab, two tokens, and the given slot


def test_the_end_is_judged_and_what_is_after_it_is_not() -> None:
    """A small model that never ends a text lets the output go on; one that prefers to end lets it end."""
    language = canvas_language(compile(sg.regex("a(b|1)*"), VOCABULARY))
    rows = np.zeros((4, VOCABULARY.size), dtype=np.float32)
    rows[1:, 0] = 1.5
    model = ScriptedDiffusion(lambda canvas: rows)

    class Ending(HashModel):
        likes = 0.0

        def start(self) -> Any:
            session, row = super().start(), np.zeros(VOCABULARY.size, dtype=np.float32)
            row[0] = self.likes
            session.extend_all = lambda tokens: np.tile(row, (len(tokens), 1))
            return session

    ends = Ending(VOCABULARY)
    ends.likes = 9.0
    run, _ = a_run(model, language, 4)
    AdaptiveParallel(ends, weight=0.4).start().advance(run)
    assert run.canvas.tolist() == [1, 0, 0, 0]
    goes_on = Ending(VOCABULARY)
    goes_on.likes = -9.0
    run, _ = a_run(model, language, 4)
    AdaptiveParallel(goes_on, weight=0.4).start().advance(run)
    assert run.canvas.tolist() == [1, FREE, FREE, FREE]


# what is refused


def test_another_vocabulary() -> None:
    other = Vocabulary([b"", b"a", b"b", b"d", b""], eos=[0], special={4: "<mask>"})
    run, _ = a_run(HashDiffusion(LETTERS), canvas_language(compile(sg.regex("[ab]{3}"), LETTERS)), 3)
    with pytest.raises(VocabularyError, match="has another vocabulary than the canvas"):
        AdaptiveParallel(HashModel(other)).start().advance(run)
    assert run.denoiser.forwards == 0


def test_logits_that_are_no_numbers() -> None:
    class Broken(HashModel):
        def start(self) -> Any:
            session = super().start()
            session.extend_all = lambda tokens: np.full((len(tokens), LETTERS.size), np.nan, dtype=np.float32)
            return session

    run, _ = a_run(HashDiffusion(LETTERS), canvas_language(compile(sg.regex("[ab]{3}"), LETTERS)), 3)
    with pytest.raises(GenerationError, match="NaN or infinity"):
        AdaptiveParallel(Broken(LETTERS)).start().advance(run)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": -0.1}, r"weight must be in \[0, 1\]; found -0.1"),
        ({"weight": math.nan}, r"weight must be in \[0, 1\]; found nan"),
        ({"lookahead": 0}, "lookahead must be an integer of at least 1, or None; found 0"),
        ({"lookahead": 2.5}, "lookahead must be an integer of at least 1, or None; found 2.5"),
    ],
)
def test_bad_numbers(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AdaptiveParallel(HashModel(LETTERS), **options)


def test_it_is_a_policy_and_says_that_it_changes_the_distribution() -> None:
    assert isinstance(AdaptiveParallel(HashModel(LETTERS)), CommitPolicy)
    assert not AdaptiveParallel(HashModel(LETTERS)).lossless
