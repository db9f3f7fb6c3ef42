"""``NGramDiffusion``: its distributions against counts in the texts and sums over all canvases, in exact fractions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from structgen.engine import Vocabulary
from structgen.errors import GenerationError, ModelError
from structgen.models.diffusion import DiffusionModel, NGramDiffusion

EOS, A, B, C, MASK, PAD = range(6)
VOCABULARY = Vocabulary([b"", b"a", b"b", b"c", b"", b""], eos=[EOS], special={MASK: "<mask>", PAD: "<pad>"})
WRITTEN = (EOS, A, B, C)  # C is in no text: only smoothing writes it
TEXTS = [[A, B], [A, B, A], [A, A, B], [B], [], [A, B, B, A]]
START = -1


class Exact:
    """The chain by its definition: it continues as a text did after its context, or forgets the context."""

    def __init__(self, order: int, smoothing: Fraction) -> None:
        self.order, self.smoothing = order, smoothing
        self.texts = [[START, *text, EOS] for text in TEXTS]

    def count(self, gram: tuple[int, ...]) -> int:
        """How often the tokens occur in the texts, in this order."""
        return sum(
            tuple(text[i : i + len(gram)]) == gram for text in self.texts for i in range(len(text) - len(gram) + 1)
        )

    def known(self, context: tuple[int, ...]) -> tuple[int, ...]:
        """The longest suffix of a context that something follows in a text."""
        context = context[max(0, len(context) - self.order + 1) :]
        while context and not any(self.count((*context, token)) for token in WRITTEN):
            context = context[1:]
        return context

    def joint(self, tokens: Sequence[int], context: tuple[int, ...] = (START,)) -> Fraction:
        """The probability of tokens after a context: a sum over the places where the context was forgotten."""
        if not tokens:
            return Fraction(1)
        token, rest = tokens[0], tokens[1:]
        if token == EOS and any(rest):
            return Fraction(0)
        context = self.known(context)
        counts = {token: self.count((*context, token)) for token in WRITTEN}
        total = sum(counts.values()) + self.smoothing * len(WRITTEN)
        goes_on, forgets = counts[token] / Fraction(total), self.smoothing / total
        if token == EOS:
            return goes_on + forgets
        chance = forgets * self.joint(rest, (token,)) if forgets else Fraction(0)
        return chance + (goes_on * self.joint(rest, (*context, token)) if goes_on else 0)

    def evidence(self, canvas: Sequence[int]) -> Fraction:
        """The probability of all texts that agree with a canvas."""
        fills = itertools.product(*(WRITTEN if token == MASK else (token,) for token in canvas))
        return sum((self.joint(fill) for fill in fills if not set(fill) & {MASK, PAD}), Fraction(0))

    def distribution(self, canvas: Sequence[int], slot: int) -> list[Fraction]:
        """The distribution of a slot given the others; unconditional if the others have probability zero."""
        rows = [self.evidence([*canvas[:slot], token, *canvas[slot + 1 :]]) for token in WRITTEN]
        if not any(rows):
            return self.distribution([MASK] * len(canvas), slot)
        return [row / sum(rows) for row in rows]


def fitted(order: int, smoothing: float, reads_prompt: bool = False) -> NGramDiffusion:
    """The chain of the texts."""
    return NGramDiffusion.fit(TEXTS, VOCABULARY, order=order, smoothing=smoothing, reads_prompt=reads_prompt)


@pytest.mark.exhaustive
@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("smoothing", [Fraction(0), Fraction(1, 4)])
def test_distributions_are_exact(order: int, smoothing: Fraction) -> None:
    """Every canvas of three slots is tested, with tokens that no text has, and with one that the chain never writes."""
    exact, model = Exact(order, smoothing), fitted(order, float(smoothing))
    rows = [*itertools.product((EOS, A, B, C, MASK), repeat=3), (A, PAD, MASK), (PAD, MASK, EOS)]
    logits = model.start([]).denoise(np.array(rows, dtype=np.int32))
    assert logits.dtype == np.float32
    assert (logits[..., [MASK, PAD]] == -np.inf).all()
    joints = {text: exact.joint(text) for text in itertools.product(WRITTEN, repeat=3)}
    for canvas, found in zip(rows, logits, strict=True):
        agreeing = [text for text in joints if all(a in (b, MASK) for a, b in zip(canvas, text, strict=True))]
        expected = float(sum(joints[text] for text in agreeing))
        assert model.evidence(canvas) == pytest.approx(expected, rel=1e-12, abs=0)
        for slot in range(3):
            distribution = [Fraction(0)] * 4
            for fixed in (canvas, [MASK] * 3):  # the others as they are; if these have probability zero, none of them
                for text, joint in joints.items():
                    others = (fixed[i] in (text[i], MASK) for i in range(3) if i != slot)
                    distribution[text[slot]] += joint if all(others) else 0
                if sum(distribution):
                    break
            exactly = [float(chance / sum(distribution)) for chance in distribution]
            assert np.exp(found[slot, :4].astype(float)) == pytest.approx(exactly, abs=1e-6)


def test_pairs_are_the_bigram_model_with_additive_smoothing() -> None:
    """With order 2 nothing is hidden: a textbook formula gives the joint."""
    smoothing = Fraction(1, 2)
    exact, model = Exact(2, smoothing), fitted(2, 0.5)
    for text in itertools.product(WRITTEN, repeat=4):
        chance = Fraction(1)
        for before, token in itertools.pairwise((START, *text)):
            if before == EOS:
                chance *= token == EOS
                continue
            seen = sum(exact.count((before, other)) for other in WRITTEN)
            if seen:
                chance *= (exact.count((before, token)) + smoothing) / (seen + smoothing * 4)
            else:  # C is in no text: the distribution of single tokens
                chance *= (exact.count((token,)) + smoothing) / (
                    sum(exact.count((one,)) for one in WRITTEN) + smoothing * 4
                )
        assert model.joint(text) == pytest.approx(float(chance), rel=1e-12, abs=0)


def test_without_smoothing_it_writes_n_grams_of_the_texts_alone() -> None:
    """All canvases of positive probability consist of triples of the texts, and all texts have one."""
    model = fitted(3, 0.0)
    exact = Exact(3, Fraction(0))
    texts = [text for text in itertools.product(WRITTEN, repeat=5) if model.joint(text) > 0]
    assert sum(map(model.joint, texts)) == pytest.approx(1, rel=1e-12)
    for text in texts:
        cut = (START, *text[: text.index(EOS) + 1]) if EOS in text else (START, *text)
        assert all(exact.count(cut[i : i + 3]) for i in range(len(cut) - 2))
    for written in TEXTS:
        assert (*written, *[EOS] * (5 - len(written))) in texts


def test_a_prompt_is_the_text_before() -> None:
    """Where prompts are read; an impossible prompt, and any prompt by default, does not change the distribution."""
    exact, reading = Exact(3, Fraction(1, 4)), fitted(3, 0.25, reads_prompt=True)
    for prompt in ([A, B], [C], [B, C, A]):
        for canvas in itertools.product((A, EOS, MASK), repeat=2):
            ahead = exact.evidence([*prompt, *canvas]) / exact.joint(prompt)
            assert reading.evidence(canvas, prompt_ids=prompt) == pytest.approx(float(ahead), rel=1e-12, abs=0)
        distribution = reading.start(prompt).denoise(np.array([[MASK, B]], dtype=np.int32))[0, 0, :4]
        expected = exact.distribution([*prompt, MASK, B], len(prompt))
        assert np.exp(distribution.astype(float)) == pytest.approx([float(p) for p in expected], abs=1e-6)
    free = np.array([[MASK, B]], dtype=np.int32)
    assert np.array_equal(reading.start([A, PAD]).denoise(free), reading.start([]).denoise(free))
    deaf = fitted(3, 0.25)
    assert np.array_equal(deaf.start([A, B]).denoise(free), reading.start([]).denoise(free))


def test_canvases_of_one_pass_do_not_see_each_other() -> None:
    """A batch gives the results of single canvases, and a range of slots gives those of the whole canvas."""
    rows = np.array(list(itertools.product((EOS, A, B, C, MASK), repeat=4)), dtype=np.int32)[::7]
    denoiser = fitted(3, 0.01).start([])
    together = denoiser.denoise(rows)
    for row, distributions in zip(rows, together, strict=True):
        np.testing.assert_allclose(denoiser.denoise(row[None])[0], distributions, atol=1e-6)
        np.testing.assert_allclose(denoiser.denoise(row[None], start=1, stop=3)[0], distributions[1:3], atol=1e-6)


def test_wide_vocabularies_and_long_canvases() -> None:
    """With 20,000 tokens and 120 slots there are as many states as n-grams, and no underflow."""
    tokens = [b"", b"", *(b"%d," % number for number in range(20_000))]
    vocabulary = Vocabulary(tokens, eos=[0], special={0: "<eos>", 1: "<mask>"})
    text = [2 + (7 * i * i) % 500 for i in range(100)]
    model = NGramDiffusion.fit([text], vocabulary, order=3, smoothing=1e-6)
    assert "tokens>" in repr(model)
    canvas = np.full((1, 120), 1, dtype=np.int32)
    canvas[0, 40:50] = text[40:50]
    distributions = np.exp(model.start([]).denoise(canvas)[0].astype(float))
    assert distributions.shape == (120, 20_002)
    assert distributions.sum(axis=1) == pytest.approx(np.ones(120), rel=1e-4)
    assert distributions[:100].argmax(axis=1).tolist() == text
    assert (distributions[100:].argmax(axis=1) == 0).all()
    unseen = [2 + 19_999 - i for i in range(120)]  # in no text: counts of 0 after 1 and after 101 tokens
    expected = math.log(1e-6 / (1 + 1e-6 * 20_001)) + 119 * math.log(1e-6 / (101 + 1e-6 * 20_001))
    assert model.log_evidence(unseen) == pytest.approx(expected, rel=1e-12)
    assert expected < math.log(5e-324)


def test_it_is_a_diffusion_model() -> None:
    """It implements the protocol."""
    model = fitted(2, 0.1)
    assert isinstance(model, DiffusionModel)
    assert (model.mask_token, model.encode_prompt("ab")) == (MASK, [A, B])


def test_bad_arguments_are_refused() -> None:
    """Bad arguments of the fit and of a joint probability are refused, and counts that did not come from a fit."""
    for options, message in (
        ({"order": 0}, "order must be at least 1"),
        ({"smoothing": -1.0}, "smoothing must be 0 or more"),
        ({"smoothing": math.inf}, "smoothing must be 0 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            NGramDiffusion.fit(TEXTS, VOCABULARY, **options)
    with pytest.raises(ValueError, match="at least one text"):
        NGramDiffusion.fit([], VOCABULARY)
    for token in (EOS, MASK, PAD, 6, -1):
        with pytest.raises(ValueError, match=f"found the id {token}"):
            NGramDiffusion.fit([[A, token]], VOCABULARY)
    with pytest.raises(ValueError, match="must have an EOS"):
        NGramDiffusion.fit(TEXTS, Vocabulary([b"a", b"b"], special={1: "<mask>"}))
    with pytest.raises(ValueError, match="the empty context"):
        NGramDiffusion(VOCABULARY, {(A,): {B: 1}}, order=2, smoothing=0.0, mask_token=MASK)
    with pytest.raises(ModelError, match="mask_token=1"):
        NGramDiffusion.fit(TEXTS, VOCABULARY, mask_token=A)
    with pytest.raises(GenerationError, match="slot 0 holds MASK"):
        fitted(2, 0.1).joint([MASK, A])
