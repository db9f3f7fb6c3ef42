"""FreeDave: the same canvases as stepwise decoding, one after the other, in fewer forward passes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from stepwise_unmasking import LETTERS, a_run, check_lossless, fill

import structgen as sg
from structgen.decode.diffusion.canvas import canvas_language
from structgen.decode.diffusion.commit_policy import CommitPolicy, Static
from structgen.decode.diffusion.fill import fill_canvas
from structgen.decode.diffusion.mean_field import FREE
from structgen.decode.diffusion.posterior import Canvas, CanvasLanguage, Posterior
from structgen.engine import compile
from structgen.methods.diffusion_drafting.canvas_draft import DraftCommitter, FreeDave, SelfSpeculative
from structgen.models.diffusion import HashDiffusion


def free_dave(rng: random.Random) -> tuple[CommitPolicy, int]:
    per_step = rng.choice((1, 1, 1, 2))
    return FreeDave(depth=rng.choice((1, 2, 4, 7)), per_step=per_step), per_step


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(10))
def test_the_same_canvases_as_stepwise_decoding(part: int) -> None:
    """This holds for 310 random denoisers and grammars, at any temperature, with blocks and without."""
    passes = [check_lossless(seed, free_dave) for seed in range(31 * part, 31 * part + 31)]
    drafted, stepwise = map(sum, zip(*passes, strict=True))
    assert drafted < stepwise


@pytest.mark.parametrize(("context", "most"), [(0.0, 0.34), (0.05, 0.5), (1.0, 1.0)])
def test_forward_passes(context: float, most: float) -> None:
    """The less the slots depend on each other, the more steps a pass verifies; without context a pass verifies four."""
    language = canvas_language(compile(sg.regex("[abc]{12}"), LETTERS))
    passes = steps = canvases = 0
    for seed in range(8):
        model = HashDiffusion(LETTERS, seed=seed, context=context)
        wanted, _ = a_run(model, language, 12)
        fill(wanted, Static())
        run, _ = a_run(model, language, 12)
        committer = fill(run, FreeDave(depth=4))
        assert isinstance(committer, DraftCommitter)
        passes, steps = passes + run.denoiser.forwards, steps + wanted.denoiser.forwards
        canvases += committer.canvases
        if not context:  # every draft is right, so that no canvas is asked about in vain
            assert run.denoiser.forwards == 1 + -(-(wanted.denoiser.forwards - 1) // 4)
            assert committer.canvases == wanted.denoiser.forwards
    assert passes <= most * steps
    assert canvases >= steps


def test_what_is_fixed_stays_and_a_certain_rest_takes_no_pass() -> None:
    language = canvas_language(compile(sg.regex("(ab|ba)c(aa|bb)"), LETTERS))
    given = np.array([FREE, FREE, FREE, 2, FREE], dtype=np.int32)
    model = HashDiffusion(LETTERS, seed=5)
    run, seen = a_run(model, language, given)
    assert seen[0] == [FREE, FREE, 3, 2, 2]
    fill(run, FreeDave())
    assert LETTERS.decode(run.canvas.tolist()) in (b"abcbb", b"bacbb")
    # One slot decides the other: a single pass, and none to verify the only step.
    assert run.denoiser.forwards == 1
    assert run.drafted == run.accepted == 0


def test_a_result_tells_what_was_drafted() -> None:
    model, grammar = HashDiffusion(LETTERS, seed=4, context=0.1), sg.regex("[abc]{9}")
    wanted = fill_canvas(model, "", grammar, canvas=9, policy=Static())
    found = fill_canvas(model, "", grammar, canvas=9, policy=FreeDave())
    assert (found.tokens, found.logprob) == (wanted.tokens, pytest.approx(wanted.logprob))
    assert found.log_z == pytest.approx(wanted.log_z)
    assert found.unscored == wanted.unscored == 0
    assert found.stats.forwards < wanted.stats.forwards == 9
    assert 0 < found.stats.accepted <= found.stats.drafted
    assert found.canvas is not None
    assert wanted.canvas is not None
    assert found.canvas.commits == wanted.canvas.commits


def test_random_samplers_are_refused_before_any_pass() -> None:
    language = canvas_language(compile(sg.regex("[ab]{3}"), LETTERS))
    for policy in (FreeDave(), SelfSpeculative()):
        run, _ = a_run(HashDiffusion(LETTERS), language, 3, sampler=Posterior())
        with pytest.raises(ValueError, match=r"must be deterministic; found the sampler Posterior"):
            policy.start().advance(run)
        assert run.denoiser.forwards == 0


@pytest.mark.parametrize("arguments", [{"depth": 0}, {"depth": 1.5}, {"per_step": 0}, {"per_step": -1}])
def test_bad_numbers(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"FreeDave: (depth|per_step) must be an integer of at least 1; found"):
        FreeDave(**arguments)


def test_it_is_a_policy_and_a_value() -> None:
    assert isinstance(FreeDave(), CommitPolicy)
    assert FreeDave() == FreeDave(4, 1)
    assert FreeDave().lossless
    assert not FreeDave(per_step=2).lossless


# the rule for thresholds that was published with it


def thresholded(model: HashDiffusion, language: CanvasLanguage, slots: int, rule: str) -> list[int]:
    """Decoding that commits all slots with a confidence of 0.6, with drafts verified by ``rule``."""
    run, _ = a_run(model, language, slots)

    def ranked(canvas: Canvas) -> tuple[list[int], int, Canvas]:
        denoised = run.restrict(run.distributions([canvas])[0])
        order = sorted(np.flatnonzero(canvas == FREE).tolist(), key=lambda slot: -denoised.confidence[slot])
        sure = sum(denoised.confidence[slot] >= 0.6 for slot in order)
        return order, max(1, sure), denoised.completion.tokens

    def filled(canvas: Canvas, slots: list[int], tokens: Canvas) -> Canvas:
        made = canvas.copy()
        made[slots] = tokens[slots]
        return made

    canvas = run.canvas
    while (canvas == FREE).any():
        order, sure, tokens = ranked(canvas)
        drafts = [filled(canvas, order[:count], tokens) for count in range(1, len(order) + 1)]
        canvas = drafts[sure - 1]
        while rule != "stepwise" and (canvas == FREE).any():
            order, sure, tokens = ranked(canvas)
            target = filled(canvas, order[:sure], tokens)
            fixed = canvas != FREE
            stands = [
                draft
                for draft in drafts
                if (draft != FREE).sum() > fixed.sum()
                and (draft[fixed] == canvas[fixed]).all()
                and (
                    (draft == target).all()
                    if rule == "equal"
                    else (draft[draft != FREE] == target[draft != FREE]).all()
                )
            ]
            if not stands:
                break
            canvas = stands[-1]
    return canvas.tolist()


def test_accepting_subsets_of_thresholded_targets_changes_the_output() -> None:
    """So no policy here does it; accepting only whole targets changes nothing."""
    language = canvas_language(compile(sg.regex("[abc]{6}"), LETTERS))
    changed = {"equal": 0, "subset": 0}
    for seed in range(60):
        model = HashDiffusion(LETTERS, seed=seed, context=0.6)
        wanted = thresholded(model, language, 6, "stepwise")
        for rule in changed:
            changed[rule] += thresholded(model, language, 6, rule) != wanted
    assert changed["equal"] == 0
    assert changed["subset"] > 0
