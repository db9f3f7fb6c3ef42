"""The probabilities of values on a canvas, against sums over all canvases."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from typing import Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel

import structgen as sg
from structgen.decode.diffusion.mean_field import FREE
from structgen.engine import Vocabulary
from structgen.models.diffusion import HashDiffusion

PIECES = [
    b"",
    b"a",
    b"b",
    b"ab",
    b'{"',
    b'n":',
    b'{"n":',
    b"1",
    b"2",
    b"12",
    b"true",
    b"tr",
    b"ue",
    b"}",
    b"2}",
    b',"m":',
    b"",
]
EOS, MASK = 0, len(PIECES) - 1
VOCABULARY = Vocabulary(PIECES, eos=[EOS], special={MASK: "<mask>"})


def _text(canvas: tuple[int, ...]) -> bytes | None:
    """The text of a canvas; None if anything stands after its end, or MASK on it."""
    if MASK in canvas:
        return None
    length = canvas.index(EOS) if EOS in canvas else len(canvas)
    return (
        None if any(token != EOS for token in canvas[length:]) else b"".join(PIECES[token] for token in canvas[:length])
    )


def _masses(model: HashDiffusion, prompt: str, canvas: list[int], temperature: float, tail: str) -> dict[bytes, float]:
    """The mass of each text under the distribution of one pass, by enumeration of all canvases."""
    denoiser = model.start(model.encode_prompt(prompt))
    logits = denoiser.denoise(np.array([[MASK if token == FREE else token for token in canvas]], dtype=np.int32))[0]
    distributions = np.exp((logits - logits.max(axis=1, keepdims=True)).astype(np.float64) / temperature)
    distributions /= distributions.sum(axis=1, keepdims=True)
    found: dict[bytes, float] = defaultdict(float)
    for tokens in itertools.product(*[range(len(PIECES)) if token == FREE else [token] for token in canvas]):
        text = _text(tokens)
        if text is None:
            continue
        length = tokens.index(EOS) + 1 if EOS in tokens else len(tokens)
        counted = range(len(tokens)) if tail == "scored" else range(length)
        found[text] += float(np.prod([distributions[slot][tokens[slot]] for slot in counted if canvas[slot] == FREE]))
    return found


def _shares(masses: dict[Any, float]) -> dict[Any, float]:
    total = sum(masses.values())
    return {key: mass / total for key, mass in masses.items()}


@sg.program(describe=False)
def label(text: str) -> Literal["a", "ab", "abb", "b"]:
    """{text}"""


@pytest.mark.parametrize("temperature", [1.0, 0.4])
@pytest.mark.parametrize("tail", ["free", "scored"])
def test_labels_have_the_mass_of_all_their_spellings(tail: str, temperature: float) -> None:
    """There are four labels on three slots, 4,913 canvases."""
    for seed in range(3):
        model = HashDiffusion(VOCABULARY, seed=seed)
        unmasking = sg.Unmasking(canvas=3, temperature=temperature)
        sampler = sg.diffusion.Posterior(tail=tail)  # type: ignore[arg-type]
        run = label.run("ab", model=model, marginals=True, sampler=sampler, unmasking=unmasking)
        masses = _masses(model, "ab", [FREE] * 3, temperature, tail)
        wanted = _shares({text: masses[text.encode()] for text in ("a", "ab", "abb", "b")})
        found = run.fields[""].marginals
        assert found is not None
        assert found == pytest.approx(wanted, rel=1e-4)
        assert sum(found.values()) == pytest.approx(1)
        assert max(abs(share - 0.25) for share in found.values()) > 0.02  # uniform distributions would show nothing


class Count(BaseModel):
    n: Literal[1, 2, 12]


@sg.program(describe=False)
def count() -> Count:
    """ab"""


@pytest.mark.exhaustive
def test_a_number_is_not_what_begins_with_it() -> None:
    """12 is not 1, whether it is one token, two, or one that closes the object; the slots before it stay fixed."""
    for seed in range(4):
        model = HashDiffusion(VOCABULARY, seed=seed)
        run = count.run(model=model, marginals=True, unmasking=sg.Unmasking(canvas=5))
        result = run.outcomes[0].result
        assert isinstance(result, sg.Result)
        assert result.canvas is not None
        ends = np.cumsum([len(PIECES[token]) for token in result.tokens])
        begun = int(np.searchsorted(ends, run.fields["n"].start, side="right"))
        canvas = [*result.tokens[:begun], *[FREE] * (5 - begun)]
        masses = _masses(model, "ab", canvas, 1.0, "free")
        wanted = _shares({n: masses[json.dumps({"n": n}, separators=(",", ":")).encode()] for n in (1, 2, 12)})
        assert run.fields["n"].marginals == pytest.approx(wanted, rel=1e-4)
        assert run.fields[""].marginals is None  # a container


def test_fields_of_many_values_have_none() -> None:
    @sg.program(describe=False)
    def word() -> sg.regex("[ab]{1,9}"):  # type: ignore[valid-type]
        """a"""

    assert word.run(model=HashDiffusion(VOCABULARY), marginals=True).fields[""].marginals is None


def test_smc_counts_the_whole_canvas() -> None:
    """Its target is a distribution of whole canvases, so slots after the end count."""
    model = HashDiffusion(VOCABULARY, seed=5)
    run = label.run("ab", model=model, marginals=True, sampler=sg.samplers.SMC(4), unmasking=sg.Unmasking(canvas=3))
    masses = _masses(model, "ab", [FREE] * 3, 1.0, "scored")
    wanted = _shares({text: masses[text.encode()] for text in ("a", "ab", "abb", "b")})
    assert run.fields[""].marginals == pytest.approx(wanted, rel=1e-4)
