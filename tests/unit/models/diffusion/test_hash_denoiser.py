"""``HashDiffusion``: deterministic, a function of prompt and other slots alone, and able to write a given text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from structgen.engine import Vocabulary
from structgen.errors import GenerationError, ModelError
from structgen.models.diffusion import CachingDenoiser, Denoiser, DiffusionModel, HashDiffusion

TOKENS = [b"", b"a", b"b", b"ab", b"abc", b"c", b"<mask>"]
EOS, A, B, AB, ABC, C, MASK = range(7)
VOCABULARY = Vocabulary(TOKENS, eos=[EOS], special={MASK: "<mask>"})
CANVASES = st.lists(st.integers(0, 6), min_size=1, max_size=6)


def canvases(*rows: list[int]) -> Any:
    """Canvases as a denoiser takes them."""
    return np.array(rows, dtype=np.int32)


def test_it_is_a_diffusion_model() -> None:
    """It implements all of the protocols."""
    model = HashDiffusion(VOCABULARY)
    assert isinstance(model, DiffusionModel)
    assert isinstance(model.start([]), Denoiser)
    assert isinstance(model.start([]), CachingDenoiser)
    assert (model.mask_token, model.encode_prompt("abab"), model.encode_prompt("")) == (MASK, [AB, AB], [])
    assert model.encode_prompt([{"role": "user", "content": "a"}, {"role": "user", "content": "bc"}][:1]) == [A]


@pytest.mark.parametrize("context", [0.0, 0.25, 1.0])
def test_logits_are_the_same_on_every_machine(context: float) -> None:
    """Integer arithmetic fixes the values; here they are recomputed number by number."""

    def mix(word: int) -> int:
        word = (word + 0x9E3779B97F4A7C15) % 2**64
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
        return word ^ word >> 31

    def noise(state: int) -> list[float]:
        return [(mix(i * 0x9E3779B97F4A7C15 % 2**64 ^ state) >> 40) / 2**24 * 6 - 3 for i in range(len(TOKENS))]

    prompt, canvas = [B, AB], [A, MASK, C, EOS]
    state = 9
    for token in prompt:
        state = mix(state ^ mix(token + 1))
    state = mix(state)
    places = [mix(slot + 1) ^ state for slot in range(4)]
    words = [0 if token == MASK else mix(token ^ mix(place)) for token, place in zip(canvas, places, strict=True)]
    expected = []
    for slot, place in enumerate(places):
        others = sum(words[:slot] + words[slot + 1 :]) % 2**64
        minding = noise(mix((others + place) % 2**64) ^ 0x9E3779B97F4A7C15)
        expected.append([(1 - context) * a + context * b for a, b in zip(noise(place), minding, strict=True)])
    logits = HashDiffusion(VOCABULARY, seed=9, context=context).start(prompt).denoise(canvases(canvas))
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits[0], expected, atol=2e-6)


@given(first=CANVASES, prompt=st.lists(st.integers(0, 5), max_size=3), data=st.data())
def test_a_canvas_is_answered_as_if_it_were_alone(first: list[int], prompt: list[int], data: st.DataObject) -> None:
    """Other canvases of a pass, earlier passes, and the slots that are asked about do not change a bit."""
    second = data.draw(st.lists(st.integers(0, 6), min_size=len(first), max_size=len(first)))
    denoiser = HashDiffusion(VOCABULARY, writes="abc").start(prompt)
    both = denoiser.denoise(canvases(first, second))
    assert both.shape == (2, len(first), VOCABULARY.size)
    fresh = HashDiffusion(VOCABULARY, writes="abc").start(prompt)
    assert np.array_equal(fresh.denoise(canvases(second))[0], both[1])
    start = data.draw(st.integers(0, len(first) - 1))
    stop = data.draw(st.integers(start + 1, len(first)))
    assert np.array_equal(fresh.denoise(canvases(first), start=start, stop=stop)[0], both[0, start:stop])
    assert (denoiser.forwards, fresh.forwards) == (1, 2)


@given(canvas=CANVASES, data=st.data(), context=st.sampled_from([0.0, 0.25, 1.0]))
def test_a_slot_minds_the_others_as_much_as_it_is_told(canvas: list[int], data: st.DataObject, context: float) -> None:
    """A token does not change the distribution of its own slot.

    It changes those of the other slots by the requested share.
    """
    slot = data.draw(st.integers(0, len(canvas) - 1))
    token = data.draw(st.integers(0, 6).filter(lambda token: token != canvas[slot]))
    denoiser = HashDiffusion(VOCABULARY, context=context).start([])
    before, after = denoiser.denoise(canvases(canvas, [*canvas[:slot], token, *canvas[slot + 1 :]]))
    assert np.array_equal(before[slot], after[slot])
    others = np.arange(len(canvas)) != slot
    changes = np.abs(before - after)[others]
    assert (changes.max(initial=0) == 0) if context == 0 else (changes.max(axis=1) > 0).all()
    assert changes.max(initial=0) <= 6 * context


def test_positions_prompts_and_seeds_matter() -> None:
    """The same tokens in other slots, after another prompt or with another seed give other distributions."""
    free = canvases([MASK, MASK, MASK])
    base = HashDiffusion(VOCABULARY).start([A]).denoise(free)[0]
    assert not np.array_equal(base[0], base[1])
    assert not np.array_equal(base, HashDiffusion(VOCABULARY).start([B]).denoise(free)[0])
    assert not np.array_equal(base, HashDiffusion(VOCABULARY).start([A, A]).denoise(free)[0])
    assert not np.array_equal(base, HashDiffusion(VOCABULARY, seed=1).start([A]).denoise(free)[0])
    turned = HashDiffusion(VOCABULARY).start([]).denoise(canvases([A, B, MASK], [B, A, MASK]))
    assert not np.array_equal(turned[0, 2], turned[1, 2])


def test_it_writes_what_it_is_told_and_then_ends() -> None:
    """Whatever is on the canvas, each slot prefers its token of the text; a short canvas gets what fits."""
    denoiser = HashDiffusion(VOCABULARY, writes="abcab").start([])
    for canvas in ([MASK] * 5, [C, MASK, A, MASK, EOS]):
        assert denoiser.denoise(canvases(canvas)).argmax(axis=2).tolist() == [[ABC, AB, EOS, EOS, EOS]]
    assert denoiser.denoise(canvases([MASK])).argmax(axis=2).tolist() == [[ABC]]
    silent = HashDiffusion(VOCABULARY, writes="").start([])
    assert silent.denoise(canvases([MASK, MASK])).argmax(axis=2).tolist() == [[EOS, EOS]]
    endless = Vocabulary([*TOKENS[:6], b""], special={0: "<eos>", MASK: "<mask>"})
    distribution = HashDiffusion(endless, writes="a").start([]).denoise(canvases([MASK, MASK]))[0]
    assert distribution[0].argmax() == A
    assert distribution[1].max() < 3


def test_slots_left_out_of_a_pass_are_seen_as_they_were() -> None:
    """The logits of a live slot use the tokens that the other slots had when they were last live."""
    denoiser = HashDiffusion(VOCABULARY).start([A])
    start = canvases([MASK, MASK, MASK, MASK])[0]
    first = denoiser.denoise_live(start, np.zeros(4, dtype=bool))
    assert np.array_equal(first, denoiser.denoise(start[None])[0])
    later = canvases([A, MASK, B, MASK])[0]
    second = denoiser.denoise_live(later, np.array([False, True, True, False]))
    stale = denoiser.denoise(canvases([MASK, MASK, B, MASK]))[0]
    assert np.array_equal(second[[0, 3]], first[[0, 3]])
    assert np.array_equal(second[1:3], stale[1:3])
    assert not np.array_equal(second[1], denoiser.denoise(later[None])[0, 1])
    counted = denoiser.forwards
    assert np.array_equal(denoiser.denoise_live(later, np.zeros(4, dtype=bool)), second)
    assert denoiser.forwards == counted
    assert np.array_equal(denoiser.denoise_live(later, np.ones(4, dtype=bool)), denoiser.denoise(later[None])[0])
    denoiser.denoise_live(start, np.ones(4, dtype=bool))
    denoiser.forget()
    assert np.array_equal(denoiser.denoise_live(later, np.zeros(4, dtype=bool)), denoiser.denoise(later[None])[0])
    short = canvases([MASK, A])
    assert np.array_equal(denoiser.denoise_live(short[0], np.array([True, False])), denoiser.denoise(short)[0])
    denoiser.close()
    assert np.array_equal(denoiser.denoise_live(short[0], np.array([True, False])), denoiser.denoise(short)[0])


BAD_CANVASES = {
    "it has no token 7": canvases([MASK, 7]),
    "it has no token -1": canvases([-1, MASK]),
    "there is no canvas": np.zeros((0, 3), dtype=np.int32),
    "there is no canvas; found": np.zeros((2, 0), dtype=np.int32),
    r"canvases are int32 \[canvases, slots\]": np.zeros(3, dtype=np.int32),
    "found float64": np.zeros((1, 3)),
    "prompt and canvas do not fit": np.full((1, 5), MASK, dtype=np.int32),
}


@pytest.mark.parametrize("message", BAD_CANVASES)
def test_bad_canvases_are_refused(message: str) -> None:
    """Nothing runs, and the message says what was found."""
    denoiser = HashDiffusion(VOCABULARY, max_context=6).start([A, B])
    with pytest.raises(GenerationError, match=message):
        denoiser.denoise(BAD_CANVASES[message])
    assert denoiser.forwards == 0


def test_other_bad_arguments_are_refused() -> None:
    """Bad prompts, slots, live slots and parameters of the model are refused."""
    model = HashDiffusion(VOCABULARY, max_context=3)
    with pytest.raises(GenerationError, match="it has no token 99"):
        model.start([1, 99])
    with pytest.raises(GenerationError, match="not an integer"):
        model.start([1.5])  # type: ignore[list-item]
    with pytest.raises(GenerationError, match="does not fit into its context"):
        model.start([1, 1, 1, 1])
    for start, stop in ((0, 3), (-1, 1), (1, 1), (2, None)):
        with pytest.raises(GenerationError, match="are not on the canvas"):
            model.start([]).denoise(canvases([MASK, MASK]), start=start, stop=stop)
    for live in (np.ones(2, dtype=bool), np.ones(3, dtype=int)):
        with pytest.raises(GenerationError, match="live slots are bool"):
            model.start([]).denoise_live(canvases([MASK] * 3)[0], live)
    with pytest.raises(ValueError, match="context must be between 0 and 1"):
        HashDiffusion(VOCABULARY, context=1.5)
    with pytest.raises(ModelError, match="none of its special tokens is MASK"):
        HashDiffusion(Vocabulary([b"", b"a"], eos=[0]))
    for token in (A, EOS, 99):
        with pytest.raises(ModelError, match=f"mask_token={token}"):
            HashDiffusion(VOCABULARY, mask_token=token)
