"""Canvases of a model whose logits stay on the device: kernels fill them as the native code on the host does."""

from __future__ import annotations

from typing import Any

import pytest
from device_diffusion import ResidentToy
from toy_canvases import VOCABULARY

import structgen as sg
from structgen.decode.diffusion.fill import fill_canvas
from structgen.models.diffusion import HashDiffusion

GRAMMARS = [sg.regex(r"(a|b){2,4}|1(\.1){0,2}"), sg.lark('start: "a" inner "b"\ninner: ("1" | ".") inner? | start+')]
TOY = HashDiffusion(VOCABULARY, seed=3, context=0.5)


@pytest.mark.parametrize("grammar", GRAMMARS, ids=["regular", "context-free"])
@pytest.mark.parametrize(
    ("policy", "sampler"),
    [
        (sg.policies.Threshold(0.7), sg.diffusion.Dingo()),
        (sg.policies.EntropyBound(0.5), sg.diffusion.Posterior()),
        (sg.policies.Prophet((1.5, 1.0, 0.5)), sg.diffusion.Dingo()),
        (sg.diffusion.FreeDave(depth=3), sg.diffusion.Dingo()),
    ],
    ids=["maxima", "moments and draws", "leaders", "several canvases"],
)
def test_canvases_are_filled_through_kernels(grammar: Any, policy: Any, sampler: Any, backend: str) -> None:
    """Kernels commit the same tokens in the same order."""
    assert backend in ("torch", "triton")
    toy = ResidentToy(TOY)
    options: dict[str, Any] = {"canvas": 6, "sampler": sampler, "policy": policy, "seed": 3}
    wanted, found = (fill_canvas(model, "", grammar, **options) for model in (TOY, toy))
    assert found.tokens == wanted.tokens
    assert found.canvas is not None
    assert wanted.canvas is not None
    assert found.canvas.commits == wanted.canvas.commits
    assert [step.logprob for step in found.steps] == pytest.approx([step.logprob for step in wanted.steps], abs=1e-5)
    assert toy.residence.copied_rows == 0
