"""``decoding=`` of ``generate``: the settings of one kind of model as one value, and the equivalent keywords."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import structgen as sg
from structgen.decode import Autoregressive, Decoding, generate
from structgen.decode.diffusion.commit_policy import Unmasking
from structgen.engine import Vocabulary
from structgen.models import HashModel
from structgen.models.diffusion import HashDiffusion

VOCABULARY = Vocabulary([b"", b"a", b"b", b"ab", b"c", b""], eos=[0], special={5: "<mask>"})
TOKENS = HashModel(VOCABULARY, seed=3)
CANVAS = HashDiffusion(VOCABULARY, seed=3)
LANGUAGE = sg.regex("(a|b){2,6}c?abab")


@sg.potential(always=True)
def without_bb(text: str) -> bool:
    return "bb" not in text


AUTOREGRESSIVE: list[dict[str, Any]] = [
    {},
    {"drafter": None},
    {"drafter": "auto", "jump_forward": True},
    {"jump_forward": False},
    {"score_ending": True},
    {"potentials": [without_bb]},
    {"drafter": None, "jump_forward": False, "score_ending": True, "potentials": (without_bb,)},
]
UNMASKING: list[dict[str, Any]] = [
    {},
    {"canvas": 9},
    {"canvas": 9, "policy": sg.policies.Factor(1.5), "temperature": 0.7, "block": 3},
    {"canvas": 9, "reuse": sg.diffusion.PrefixReuse()},
]


@pytest.mark.parametrize("settings", AUTOREGRESSIVE, ids=lambda settings: "-".join(settings) or "none")
def test_keywords_of_tokens_are_fields_of_autoregressive(settings: dict[str, Any]) -> None:
    """Both spellings give the same tokens, and the same steps and passes, except for drafters that learn."""
    for seed in range(3):
        common: dict[str, Any] = {"sampler": sg.Multinomial(), "max_tokens": 12, "seed": seed}
        by_keyword = generate(TOKENS, "ab", LANGUAGE, **common, **settings)
        by_value = generate(TOKENS, "ab", LANGUAGE, **common, decoding=Autoregressive(**settings))
        assert by_keyword.tokens == by_value.tokens
        assert by_keyword.finish_reason == by_value.finish_reason
        if settings.get("drafter", "auto") is None or not settings.get("jump_forward", True):
            assert by_keyword.steps == by_value.steps
            assert by_keyword.stats.forwards == by_value.stats.forwards


@pytest.mark.parametrize("settings", UNMASKING, ids=lambda settings: "-".join(settings) or "none")
def test_keywords_of_canvases_are_fields_of_unmasking(settings: dict[str, Any]) -> None:
    """Both spellings give the same tokens, commits and passes."""
    for seed in range(3):
        common: dict[str, Any] = {"sampler": sg.diffusion.Posterior(), "seed": seed}
        by_keyword = generate(CANVAS, "ab", LANGUAGE, **common, **settings)
        by_value = generate(CANVAS, "ab", LANGUAGE, **common, decoding=Unmasking(**settings))
        assert by_keyword.tokens == by_value.tokens
        assert by_keyword.canvas is not None
        assert by_value.canvas is not None
        assert by_keyword.canvas.commits == by_value.canvas.commits
        assert by_keyword.stats.forwards == by_value.stats.forwards


def test_a_canvas_streams_by_its_settings_too() -> None:
    """``Unmasking.stream`` is used where ``stream`` is not given."""
    given: list[Any] = []
    held: list[Any] = []
    generate(CANVAS, "ab", LANGUAGE, decoding=Unmasking(canvas=9, stream=held.append))
    generate(CANVAS, "ab", LANGUAGE, decoding=Unmasking(canvas=9, stream=held.append), stream=given.append)
    assert len(given) == len(held) > 1


@pytest.mark.parametrize(
    ("model", "decoding", "name", "value"),
    [
        (TOKENS, Autoregressive(), "drafter", None),
        (TOKENS, Autoregressive(score_ending=True), "score_ending", True),
        (TOKENS, Autoregressive(), "jump_forward", False),
        (TOKENS, Autoregressive(), "potentials", [without_bb]),
        (CANVAS, Unmasking(), "canvas", 9),
        (CANVAS, Unmasking(canvas=9), "block", 3),
    ],
)
def test_both_spellings_at_once_are_refused(model: Any, decoding: Decoding, name: str, value: Any) -> None:
    """They are refused even if they agree; the message says how to write it."""
    with pytest.raises(ValueError, match=rf"^{name}=.* and decoding= are both given; write decoding=\w+\({name}="):
        generate(model, "ab", LANGUAGE, decoding=decoding, **{name: value})


@pytest.mark.parametrize(
    ("model", "decoding", "wanted"),
    [
        (TOKENS, Unmasking(), r"'hash', which writes token by token; pass decoding=Autoregressive\("),
        (CANVAS, Autoregressive(), r"'hash', which fills a canvas; pass decoding=Unmasking\("),
        (TOKENS, "auto", r"pass decoding=Autoregressive\("),
        (CANVAS, 5, r"pass decoding=Unmasking\("),
    ],
)
def test_settings_of_the_other_kind_are_refused(model: Any, decoding: Any, wanted: str) -> None:
    """So is anything but settings."""
    with pytest.raises(ValueError, match=f"^decoding=.* is not for model {wanted}" if "hash" in wanted else wanted):
        generate(model, "ab", LANGUAGE, decoding=decoding)


@pytest.mark.parametrize("model", [TOKENS, CANVAS], ids=["tokens", "canvas"])
def test_unknown_keywords_are_refused(model: Any) -> None:
    """The error is Python's own."""
    with pytest.raises(TypeError, match=r"generate\(\) got an unexpected keyword argument 'drafters'"):
        generate(model, "ab", LANGUAGE, drafters=None)  # type: ignore[call-arg]


def test_defaults_of_the_other_kind_are_accepted() -> None:
    """Callers that pass all keywords on need not know which kind of model they have."""
    plain = generate(TOKENS, "ab", LANGUAGE)
    nothing: dict[str, Any] = {"canvas": None, "policy": None, "temperature": None, "block": None, "reuse": None}
    assert generate(TOKENS, "ab", LANGUAGE, **nothing).tokens == plain.tokens
    filled = generate(CANVAS, "ab", LANGUAGE)
    defaults: dict[str, Any] = {"drafter": "auto", "jump_forward": True, "score_ending": False, "potentials": ()}
    assert generate(CANVAS, "ab", LANGUAGE, **defaults).tokens == filled.tokens
    assert generate(CANVAS, "ab", LANGUAGE, drafter=None).tokens == filled.tokens


def test_an_array_is_a_canvas_by_both_spellings() -> None:
    """The canvas has some fixed slots."""
    canvas = np.full(9, -1)
    canvas[0] = 1
    by_keyword = generate(CANVAS, "ab", LANGUAGE, canvas=canvas)
    by_value = generate(CANVAS, "ab", LANGUAGE, decoding=Unmasking(canvas=canvas))
    assert by_keyword.tokens == by_value.tokens
    assert by_keyword.tokens[0] == 1
