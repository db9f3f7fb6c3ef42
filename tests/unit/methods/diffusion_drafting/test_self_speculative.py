"""Self speculative decoding: lossless, with a chain of as many nodes as it says."""

from __future__ import annotations

import random

import pytest
from stepwise_unmasking import LETTERS, a_run, check_lossless, fill

import structgen as sg
from structgen.decode.diffusion.canvas import canvas_language
from structgen.decode.diffusion.commit_policy import CommitPolicy, Static
from structgen.engine import compile
from structgen.methods.diffusion_drafting.canvas_draft import DraftCommitter, FreeDave, SelfSpeculative
from structgen.models.diffusion import HashDiffusion


def self_speculative(rng: random.Random) -> tuple[CommitPolicy, int]:
    return SelfSpeculative(rng.choice((None, None, 0, 1, 3))), 1


@pytest.mark.parametrize("part", range(5))
def test_the_same_canvases_as_stepwise_decoding(part: int) -> None:
    """This holds for 65 random denoisers and grammars, at any temperature, with blocks and without."""
    passes = [check_lossless(seed, self_speculative) for seed in range(1000 + 13 * part, 1013 + 13 * part)]
    drafted, stepwise = map(sum, zip(*passes, strict=True))
    assert drafted < stepwise


def test_the_chain_has_one_node_more_than_drafts() -> None:
    language = canvas_language(compile(sg.regex("[abc]{9}"), LETTERS))
    model = HashDiffusion(LETTERS, seed=2)
    for drafts in (0, 1, 3, 20):
        run, _ = a_run(model, language, 9)
        committer = SelfSpeculative(drafts).start()
        committer.advance(run)
        # The empty canvas, then the nodes; the last step fills the canvas, so that nothing is asked.
        assert committer.canvases == 1 + min(drafts + 1, 8)
        assert run.denoiser.forwards == committer.forwards == 2


def test_all_slots_of_an_indifferent_model_take_two_passes() -> None:
    """This holds where no slot depends on another, neither in the model nor in the grammar."""
    language = canvas_language(compile(sg.regex("[abc]{10}"), LETTERS))
    for seed in range(5):
        run, _ = a_run(HashDiffusion(LETTERS, seed=seed, context=0.0), language, 10)
        fill(run, SelfSpeculative())
        assert run.denoiser.forwards == 2
        assert run.drafted == run.accepted == 9


def test_drafts_that_know_the_grammar_stand_more_often() -> None:
    """FreeDave conditions the distribution again after each drafted step.

    A completion of one pass does not.
    """
    language = canvas_language(compile(sg.regex("((a|b)c|b){8}"), LETTERS))
    passes = {FreeDave(depth=4): 0, SelfSpeculative(drafts=3): 0}
    for seed in range(12):
        for policy in passes:
            run, _ = a_run(HashDiffusion(LETTERS, seed=seed, context=0.0), language, 16)
            fill(run, policy)
            passes[policy] += run.denoiser.forwards
    assert passes[FreeDave(depth=4)] < passes[SelfSpeculative(drafts=3)]


def test_a_draft_that_does_not_stand_costs_nothing_but_its_canvas() -> None:
    """The output is that of a model whose drafts are nearly all wrong."""
    language = canvas_language(compile(sg.regex("[abc]{8}"), LETTERS))
    rejected = 0
    for seed in range(10):
        model = HashDiffusion(LETTERS, seed=seed, context=1.0)
        wanted, stepwise = a_run(model, language, 8)
        fill(wanted, Static())
        run, seen = a_run(model, language, 8)
        committer = fill(run, SelfSpeculative())
        assert isinstance(committer, DraftCommitter)
        assert seen == stepwise
        assert committer.canvases > 8
        rejected += run.drafted - run.accepted
    assert rejected > 50


@pytest.mark.parametrize("drafts", [-1, 1.5, "all"])
def test_bad_numbers(drafts: int) -> None:
    with pytest.raises(ValueError, match="SelfSpeculative: drafts must be an integer of at least 0, or None; found"):
        SelfSpeculative(drafts)


def test_it_is_a_policy_and_a_value() -> None:
    assert isinstance(SelfSpeculative(), CommitPolicy)
    assert SelfSpeculative() == SelfSpeculative(None)
    assert SelfSpeculative().lossless
