"""``HiddenMarkovDiffusion``.

Its distributions are compared with sums over all canvases and all hidden paths, in exact fractions.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from structgen.engine import Vocabulary
from structgen.errors import GenerationError, ModelError
from structgen.models.diffusion import Denoiser, DiffusionModel, HiddenMarkovDiffusion

EOS, A, B, C, MASK = range(5)
VOCABULARY = Vocabulary([b"", b"a", b"b", b"c", b""], eos=[EOS], special={MASK: "[MASK]"})
WRITTEN = (EOS, A, B, C)
Distribution = list[Fraction]


class Exact:
    """A hidden Markov model by its definition: sums over all hidden paths."""

    def __init__(self, initial: Distribution, transition: list[Distribution], emission: list[Distribution]) -> None:
        self.initial, self.transition, self.emission = initial, transition, emission
        self._joints: dict[tuple[int, ...], Fraction] = {}

    def joint(self, tokens: Sequence[int]) -> Fraction:
        """The probability of a text, computed once."""
        text = tuple(tokens)
        if text not in self._joints:
            self._joints[text] = self._joint(text)
        return self._joints[text]

    def _joint(self, tokens: tuple[int, ...]) -> Fraction:
        total = Fraction(0)
        for path in itertools.product(range(len(self.initial)), repeat=len(tokens)):
            chance = self.initial[path[0]]
            for before, after in itertools.pairwise(path):
                chance *= self.transition[before][after]
            for state, token in zip(path, tokens, strict=True):
                chance *= self.emission[state][token]
            total += chance
        return total

    def evidence(self, canvas: Sequence[int]) -> Fraction:
        """The probability of all texts that agree with a canvas."""
        fills = itertools.product(*(WRITTEN if token == MASK else (token,) for token in canvas))
        return sum((self.joint(fill) for fill in fills), Fraction(0))

    def distribution(self, canvas: Sequence[int], slot: int) -> Distribution:
        """The distribution of a slot given the others; unconditional if the others have probability zero."""
        rows = [self.evidence([*canvas[:slot], token, *canvas[slot + 1 :]]) for token in WRITTEN]
        if not any(rows):
            return self.distribution([MASK] * len(canvas), slot)
        return [row / sum(rows) for row in rows]

    def model(self, **options: Any) -> HiddenMarkovDiffusion:
        """The same model as a diffusion model."""
        numbers = [[[float(x) for x in row] for row in rows] for rows in (self.transition, self.emission)]
        return HiddenMarkovDiffusion(VOCABULARY, [float(x) for x in self.initial], *numbers, **options)


def random_distribution(generator: random.Random, size: int) -> Distribution:
    """Multiples of an eighth, with zeros, which doubles represent exactly."""
    while sum(parts := [generator.choice([0, 0, 1, 2, 3]) for _ in range(size - 1)]) > 8:
        pass
    distribution = [*parts, 8 - sum(parts)]
    generator.shuffle(distribution)
    return [Fraction(part, 8) for part in distribution]


def random_model(seed: int, states: int = 2) -> Exact:
    """A small hidden Markov model."""
    generator = random.Random(seed)
    return Exact(
        random_distribution(generator, states),
        [random_distribution(generator, states) for _ in range(states)],
        [[*random_distribution(generator, 4), Fraction(0)] for _ in range(states)],
    )


def ending_model() -> Exact:
    """Two states of text and an absorbing one that writes EOS."""
    half, third, none = Fraction(1, 2), Fraction(1, 4), Fraction(0)
    return Exact(
        [half, half, none],
        [[third, half, third], [half, third, third], [none, none, 1 + none]],
        [[none, half, half, none, none], [none, third, none, 1 - third, none], [1 + none, none, none, none, none]],
    )


def check(exact: Exact, rows: list[tuple[int, ...]], model: HiddenMarkovDiffusion) -> None:
    """Compare all distributions of all canvases, asked about in one pass."""
    logits = model.start([]).denoise(np.array(rows, dtype=np.int32))
    assert logits.dtype == np.float32
    assert (logits[..., MASK] == -np.inf).all()
    for canvas, found in zip(rows, logits, strict=True):
        for slot in range(len(canvas)):
            expected = exact.distribution(canvas, slot)
            assert np.exp(found[slot, :MASK].astype(float)) == pytest.approx([float(p) for p in expected], abs=1e-6)
        assert model.evidence(canvas) == pytest.approx(float(exact.evidence(canvas)), rel=1e-12, abs=0)


@pytest.mark.parametrize("seed", range(8))
def test_distributions_are_exact(seed: int) -> None:
    """Every canvas of three slots is tested: free and fixed slots, possible and impossible ones."""
    exact = random_model(seed)
    check(exact, list(itertools.product((EOS, A, B, C, MASK), repeat=3)), exact.model())


def test_distributions_of_texts_that_end_are_exact() -> None:
    """With an absorbing state, everything after a fixed EOS is EOS."""
    exact = ending_model()
    model = exact.model(slots=3)
    check(exact, list(itertools.product((EOS, A, C, MASK), repeat=3)), model)
    distribution = np.exp(model.start([]).denoise(np.array([[A, EOS, MASK]], dtype=np.int32)))[0, 2]
    assert distribution.argmax() == EOS
    assert distribution[EOS] == pytest.approx(1)


def test_joint_probabilities_are_those_of_all_canvases() -> None:
    """They sum to one, and the chain rule over single slots gives the same."""
    exact = ending_model()
    model = exact.model()
    texts = list(itertools.product(WRITTEN, repeat=4))
    assert sum(map(model.joint, texts)) == pytest.approx(1, rel=1e-12)
    denoiser = model.start([])
    for text in texts[::7]:
        assert model.joint(text) == pytest.approx(float(exact.joint(text)), rel=1e-12, abs=0)
        if not exact.joint(text):
            continue
        canvas = np.full((1, 4), MASK, dtype=np.int32)
        chance = 1.0
        for slot in (2, 0, 3, 1):  # in any order
            chance *= math.exp(denoiser.denoise(canvas, start=slot, stop=slot + 1)[0, 0, text[slot]])
            canvas[0, slot] = text[slot]
        assert chance == pytest.approx(model.joint(text), rel=1e-5)
    assert denoiser.forwards == 4 * sum(exact.joint(text) > 0 for text in texts[::7])


def test_a_prompt_is_what_the_chain_wrote_before() -> None:
    """Where prompts are read; an impossible prompt, and any prompt by default, does not change the distribution."""
    exact = random_model(3)
    reading, deaf = exact.model(reads_prompt=True), exact.model()
    prompt = next(list(p) for p in itertools.product(WRITTEN, repeat=2) if exact.joint(p))
    rows = np.array(list(itertools.product((A, C, MASK), repeat=2)), dtype=np.int32)
    distributions = np.exp(reading.start(prompt).denoise(rows).astype(float))
    for canvas, distribution in zip(rows.tolist(), distributions, strict=True):
        ahead = exact.evidence([*prompt, *canvas]) / exact.joint(prompt)
        assert reading.evidence(canvas, prompt_ids=prompt) == pytest.approx(float(ahead), rel=1e-12, abs=0)
        if exact.evidence([*prompt, *canvas[:1], MASK]):
            expected = exact.distribution([*prompt, *canvas], 3)
            assert distribution[1, :MASK] == pytest.approx([float(p) for p in expected], abs=1e-6)
    assert np.array_equal(deaf.start(prompt).denoise(rows), deaf.start([]).denoise(rows))
    ended = ending_model().model(reads_prompt=True)
    assert np.array_equal(ended.start([EOS, A]).denoise(rows), ended.start([]).denoise(rows))
    assert not np.array_equal(ended.start([A, EOS]).denoise(rows), ended.start([]).denoise(rows))


def test_long_canvases_and_tiny_probabilities_do_not_underflow() -> None:
    """Sums are in logs: 2,000 tokens of probability 1e-4, and a token only of a state of probability 1e-250."""
    rare = 1e-4
    model = HiddenMarkovDiffusion(VOCABULARY, [1.0], [[1.0]], [[0, rare, 1 - rare, 0, 0]])
    assert model.log_evidence([A] * 2000) == pytest.approx(2000 * math.log(rare))
    tiny = 1e-250
    emission = [[0, 1.0, 0, 0, 0], [0, tiny, 1 - tiny, 0, 0]]
    model = HiddenMarkovDiffusion(VOCABULARY, [1 - tiny, tiny], [[1, 0], [0, 1]], emission)
    distribution = model.start([]).denoise(np.array([[MASK, A]], dtype=np.int32))[0, 0]
    assert distribution[A] == 0
    assert distribution[B] == pytest.approx(2 * math.log(tiny), rel=1e-6)
    assert distribution[C] == -np.inf


def test_canvases_of_one_pass_do_not_see_each_other() -> None:
    """A batch gives the results of single canvases, and a range of slots gives those of the whole canvas."""
    model = random_model(5, states=3).model()
    rows = np.array(list(itertools.product((EOS, A, B, MASK), repeat=4)), dtype=np.int32)[::5]
    denoiser = model.start([])
    together = denoiser.denoise(rows)
    for row, distributions in zip(rows, together, strict=True):
        np.testing.assert_allclose(denoiser.denoise(row[None])[0], distributions, atol=1e-6)
        np.testing.assert_allclose(denoiser.denoise(row[None], start=1, stop=3)[0], distributions[1:3], atol=1e-6)
    denoiser.close()
    assert np.array_equal(denoiser.denoise(rows), together)


def test_it_is_a_diffusion_model() -> None:
    """It implements all of the protocols."""
    model = ending_model().model()
    assert isinstance(model, DiffusionModel)
    assert isinstance(model.start([]), Denoiser)
    assert model.encode_prompt("ab") == [A, B]


def test_what_is_no_model_is_refused() -> None:
    """Probabilities that do not sum to 1, shapes that do not fit, and a model that writes MASK are refused."""
    fine: list[Any] = [[1.0], [[1.0]], [[0, 1, 0, 0, 0]]]
    wrong: dict[str, tuple[int, Any]] = {
        "initial must hold distributions that sum to 1": (0, [0.5]),
        "transition must hold probabilities": (1, [[-1.0]]),
        "emission must hold probabilities": (2, [[0, math.nan, 1, 0, 0]]),
        r"transition must be \[1, 1\]; found \[1, 2\]": (1, [[0.5, 0.5]]),
        r"emission must be \[1, 5\]": (2, [[1.0]]),
        "emission must give MASK": (2, [[0, 0.5, 0, 0, 0.5]]),
    }
    for message, (place, values) in wrong.items():
        arguments = [*fine[:place], values, *fine[place + 1 :]]
        with pytest.raises(ValueError, match=message):
            HiddenMarkovDiffusion(VOCABULARY, *arguments)
    with pytest.raises(ValueError, match="slots must be at least 1"):
        HiddenMarkovDiffusion(VOCABULARY, *fine, slots=0)
    with pytest.raises(ModelError, match="it is an EOS"):
        HiddenMarkovDiffusion(VOCABULARY, *fine, mask_token=EOS)


def test_canvases_that_it_cannot_write_are_refused() -> None:
    """Another length than its own, a free slot in a text, and unknown ids are refused."""
    model = ending_model().model(slots=2)
    with pytest.raises(GenerationError, match="one canvas length; found 3 slots; it was made for 2"):
        model.start([]).denoise(np.full((1, 3), MASK, dtype=np.int32))
    with pytest.raises(GenerationError, match="joint probability needs a canvas without free slots; slot 1 holds MASK"):
        model.joint([A, MASK])
    with pytest.raises(GenerationError, match="it has no token 5"):
        model.evidence([A, 5])
