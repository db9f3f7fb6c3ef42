"""``generate`` and ``sample`` take models of both kinds, and refuse arguments of the other kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import structgen as sg
from structgen.decode.diffusion.canvas_run import Snapshot
from structgen.decode.diffusion.entry import fill_smc, slots_within
from structgen.decode.diffusion.fill import fill_canvas
from structgen.decode.diffusion.mean_field import FREE
from structgen.engine import Vocabulary
from structgen.errors import BudgetError, GenerationError, VocabularyError
from structgen.models import HashModel
from structgen.models.diffusion import HashDiffusion

VOCABULARY = Vocabulary([b"", b"a", b"b", b"ab", b"c", b""], eos=[0], special={5: "<mask>"})
TOKENS = HashModel(VOCABULARY, seed=3)
CANVAS = HashDiffusion(VOCABULARY, seed=3)
LANGUAGE = sg.regex("(a|b){2,6}c?")


def test_a_diffusion_model_fills_a_canvas() -> None:
    """The result is that of ``fill_canvas`` with the same arguments, tokens, steps and all."""
    for seed in range(5):
        settings: dict[str, Any] = {
            "canvas": 5,
            "policy": sg.policies.Factor(1.5),
            "temperature": 0.7,
            "block": 3,
            "seed": seed,
        }
        found = sg.generate(CANVAS, "ab", LANGUAGE, sampler=sg.diffusion.Posterior(), **settings)
        direct = fill_canvas(CANVAS, "ab", LANGUAGE, sampler=sg.diffusion.Posterior(), **settings)
        assert (found.tokens, found.steps) == (direct.tokens, direct.steps)
        assert found.canvas is not None
        assert found.canvas.slots == 5
        assert sg.compile(LANGUAGE, VOCABULARY).matcher().validate(found.tokens) == len(found.tokens)


def test_dingo_is_the_default() -> None:
    """Without a sampler the most probable completion is taken, whatever the seed."""
    outputs = {sg.generate(CANVAS, "ab", LANGUAGE, canvas=5, seed=seed).tokens for seed in range(4)}
    assert outputs == {sg.generate(CANVAS, "ab", LANGUAGE, canvas=5, sampler=sg.diffusion.Dingo()).tokens}
    sampled = {
        sg.generate(CANVAS, "ab", LANGUAGE, canvas=5, sampler=sg.diffusion.Posterior(), seed=seed).tokens
        for seed in range(4)
    }
    assert len(sampled) > 1


def test_smc_draws_one_of_its_samples_by_weight() -> None:
    """``generate`` returns one of the outputs of ``sample``, by weight: the same seed gives the same particles."""
    for seed in range(6):
        samples = sg.sample(CANVAS, "ab", LANGUAGE, sampler=sg.samplers.SMC(6), canvas=4, seed=seed)
        outputs = {result.tokens for result in samples.results}
        assert sg.generate(CANVAS, "ab", LANGUAGE, sampler=sg.samplers.SMC(6), canvas=4, seed=seed).tokens in outputs
        direct = fill_smc(CANVAS, "ab", LANGUAGE, sampler=sg.samplers.SMC(6), canvas=4, seed=seed)
        assert [each.log_weight for each in samples.samples] == [each.log_weight for each in direct.samples]


def test_snapshots_are_streamed() -> None:
    """``stream`` is called with the canvas before the first pass and after each commit."""
    seen: list[Snapshot] = []
    result = sg.generate(CANVAS, "ab", LANGUAGE, canvas=5, stream=seen.append)
    assert seen[0].forwards == 0
    assert (seen[0].canvas == FREE).any()
    assert result.canvas is not None
    assert seen[-1].canvas.tolist() == list(result.canvas.tokens)
    assert seen[-1].forwards == result.stats.forwards


@pytest.mark.parametrize("budget", [2, 3, 6, 100])
def test_max_tokens_bounds_the_canvas(budget: int) -> None:
    """The canvas has at most this many tokens; below the bound, the grammar gives the number of slots."""
    result = sg.generate(CANVAS, "", LANGUAGE, max_tokens=budget, sampler=sg.diffusion.Posterior())
    assert result.canvas is not None
    assert len(result.tokens) <= result.canvas.slots <= min(budget, 7)


def test_max_tokens_leaves_room_for_the_prompt() -> None:
    """With a model of a short context, the prompt limits the canvas."""
    model = HashDiffusion(VOCABULARY, max_context=6)
    result = sg.generate(model, "abab", sg.regex("[ab]{1,20}"), max_tokens=20)
    assert result.canvas is not None
    assert result.canvas.slots == 4  # "abab" takes two tokens
    with pytest.raises(GenerationError, match="context"):
        sg.generate(model, "abab", sg.regex("c{5}"), max_tokens=20)


def test_what_cannot_be_said_within_max_tokens_is_refused_at_once() -> None:
    """The message names the argument and the number that would be enough."""
    model = HashDiffusion(VOCABULARY)
    with pytest.raises(BudgetError, match=r"max_tokens=4: .* takes 5 tokens") as caught:
        sg.generate(model, "", sg.literal("ccccc"), max_tokens=4)
    assert (caught.value.budget, caught.value.needed) == (4, 5)
    for budget in (0, -1, 2.5, "7", True):
        with pytest.raises(ValueError, match="max_tokens must be an integer of at least 1"):
            slots_within(sg.compile(sg.literal("cc"), VOCABULARY), budget)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("canvas", 5),
        ("canvas", np.array([-1, -1])),
        ("policy", sg.policies.Static()),
        ("temperature", 1.0),
        ("block", 4),
        ("reuse", sg.diffusion.PrefixReuse()),
    ],
)
def test_arguments_of_canvases_are_refused_for_tokens(name: str, value: Any) -> None:
    """None of them is ignored, and the message names the argument, the model and a solution."""
    with pytest.raises(ValueError, match=rf"{name}=.*'hash', which writes token by token; leave it out; \w"):
        sg.generate(TOKENS, "ab", LANGUAGE, **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("drafter", TOKENS),
        ("jump_forward", False),
        ("score_ending", True),
        ("potentials", [lambda text: True]),
    ],
)
def test_arguments_of_tokens_are_refused_for_canvases(name: str, value: Any) -> None:
    """The same holds the other way round."""
    with pytest.raises(ValueError, match=rf"{name}=.*'hash', which fills a canvas; leave it out; \w"):
        sg.generate(CANVAS, "ab", LANGUAGE, **{name: value})


@pytest.mark.parametrize("sampler", [sg.diffusion.Dingo(), sg.diffusion.Posterior()], ids=repr)
def test_samplers_of_canvases_are_refused_for_tokens(sampler: Any) -> None:
    """The message says which samplers are possible."""
    with pytest.raises(ValueError, match=r"writes token by token; take Greedy\(\)"):
        sg.generate(TOKENS, "ab", LANGUAGE, sampler=sampler)


@pytest.mark.parametrize(
    "sampler", [sg.Greedy(), sg.Multinomial(), sg.samplers.Beam(2), sg.samplers.AWRS(), "dingo"], ids=repr
)
def test_samplers_of_tokens_are_refused_for_canvases(sampler: Any) -> None:
    """The same holds the other way round; anything but a sampler is refused as well."""
    with pytest.raises(ValueError, match=r"fills a canvas; take Dingo\(\)"):
        sg.generate(CANVAS, "ab", LANGUAGE, sampler=sampler)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("policy", sg.policies.Static()),
        ("block", 2),
        ("reuse", sg.diffusion.DualReuse()),
        ("stream", lambda snapshot: None),
    ],
)
def test_smc_takes_nothing_of_steps(name: str, value: Any) -> None:
    """A policy would change the distribution that the weights refer to."""
    with pytest.raises(ValueError, match=f"{name}=.* does not apply to SMC"):
        sg.generate(CANVAS, "ab", LANGUAGE, sampler=sg.samplers.SMC(4), canvas=4, **{name: value})


def test_canvas_and_max_tokens_exclude_each_other() -> None:
    """Both set the number of slots."""
    with pytest.raises(ValueError, match="both set the number of slots"):
        sg.generate(CANVAS, "ab", LANGUAGE, canvas=5, max_tokens=5)
    with pytest.raises(ValueError, match="both set the number of slots"):
        sg.sample(CANVAS, "ab", LANGUAGE, canvas=5, max_tokens=5)


def test_sample_refuses_what_belongs_to_the_other_kind() -> None:
    """Potentials and other samplers are refused for canvases; canvas, order and temperature for tokens."""
    with pytest.raises(ValueError, match="potentials"):
        sg.sample(CANVAS, "ab", LANGUAGE, potentials=[lambda text: True])
    with pytest.raises(ValueError, match=r"take SMC\(\)"):
        sg.sample(CANVAS, "ab", LANGUAGE, sampler=sg.samplers.BestOf(2))
    for name, value in (("canvas", 5), ("temperature", 0.5), ("order", object())):
        with pytest.raises(ValueError, match=f"{name}=.*writes token by token"):
            sg.sample(TOKENS, "ab", LANGUAGE, **{name: value})  # type: ignore[arg-type]


def test_constraints_of_other_vocabularies_are_refused() -> None:
    """This holds with and without a bound on tokens."""
    other = sg.compile(sg.literal("ab"), Vocabulary([b"", b"a", b"b"], eos=[0]))
    for settings in ({}, {"max_tokens": 4}, {"canvas": 4}):
        with pytest.raises(VocabularyError, match="another vocabulary"):
            sg.generate(CANVAS, "ab", other, **settings)  # type: ignore[arg-type]


def test_models_of_tokens_are_as_before() -> None:
    """The defaults of ``max_tokens`` and ``sampler`` are 256 and ``Greedy()``."""
    plain = sg.generate(TOKENS, "ab", LANGUAGE)
    assert plain.tokens == sg.generate(TOKENS, "ab", LANGUAGE, max_tokens=256, sampler=sg.Greedy()).tokens
    assert plain.canvas is None
