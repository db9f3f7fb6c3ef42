"""Passes over some slots of a canvas: which results are exact, which are approximate, and what restores them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from slot_cache import LiveCanvas, SlotCache, SlotPass  # noqa: E402  # needs torch

WIDTH, HEADS, SIZE, SLOTS = 16, 2, 11, 9
START = np.full(SLOTS, SIZE - 1, dtype=np.int32)


class Toy:
    """A bidirectional transformer with learned positions.

    Args:
        layers: of attention and feed-forward parts.
        prompt: positions at the front that see one another but not the rest.
    """

    def __init__(self, layers: int, *, prompt: int = 0) -> None:
        generator = torch.Generator().manual_seed(layers)

        def weight(*shape: int) -> Any:
            # In float64, so that rounding, which depends on the machine, is far below the differences that are tested.
            return torch.randn(*shape, generator=generator).double() * shape[0] ** -0.5

        self.prompt = prompt
        self.tokens, self.places = weight(SIZE, WIDTH) * 3, weight(SLOTS, WIDTH) * 3
        self.projections = [weight(WIDTH, 3 * WIDTH) * 2 for _ in range(layers)]
        self.feeds = [(weight(WIDTH, 32), weight(32, WIDTH)) for _ in range(layers)]
        self.head = weight(WIDTH, SIZE)

    def plain(self, canvas: Any) -> Any:
        """All slots in one pass, no cache."""
        everything = torch.arange(SLOTS)
        return self.run(canvas, everything, lambda keys, values: (keys, values))

    def live(self, canvas: Any, through: SlotPass) -> Any:
        """The live slots alone, the others from the cache."""
        return self.run(canvas, through.live, through.put)

    def run(self, canvas: Any, slots: Any, put: Any) -> Any:
        stream = (self.tokens[torch.from_numpy(canvas).long()] + self.places)[slots]
        sees = (torch.arange(SLOTS) < self.prompt) | (slots[:, None] >= self.prompt)
        for projection, (up, down) in zip(self.projections, self.feeds, strict=True):
            mixed = stream @ projection
            query, keys, values = (part.unflatten(1, (HEADS, -1)).transpose(0, 1) for part in mixed.chunk(3, 1))
            keys, values = put(keys, values)
            found = torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=sees)
            stream = stream + found.transpose(0, 1).flatten(1)
            stream = stream + (stream @ up).relu() @ down
        return (stream @ self.head).float().numpy()


def some(*slots: int) -> Any:
    """A mask of live slots."""
    return np.isin(np.arange(SLOTS), slots)


def changed(canvas: Any, **tokens: int) -> Any:
    """A canvas with other tokens in some slots: ``s3=5`` puts 5 into slot 3."""
    new = canvas.copy()
    for slot, token in tokens.items():
        new[int(slot[1:])] = token
    return new


EVERYTHING = some(*range(SLOTS))


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_with_every_slot_live_it_is_a_plain_pass(layers: int) -> None:
    """This holds whatever was cached before, and also if the first call has no live slot at all."""
    toy = Toy(layers)
    canvas = LiveCanvas(toy.live, layers=layers)
    np.testing.assert_allclose(canvas.denoise(START, some()), toy.plain(START), atol=1e-5)
    later = changed(START, s0=3, s5=4)
    canvas.denoise(later, some(2, 7))
    np.testing.assert_allclose(canvas.denoise(later, EVERYTHING), toy.plain(later), atol=1e-5)
    assert canvas.passes == 3


def test_one_layer_is_exact_in_the_live_slots() -> None:
    """Its keys and values depend only on a slot's own token; the other slots keep their logits."""
    toy = Toy(1)
    canvas = LiveCanvas(toy.live, layers=1)
    first = canvas.denoise(START, EVERYTHING)
    later = changed(START, s1=2, s4=7)
    second = canvas.denoise(later, some(1, 4, 6))
    np.testing.assert_allclose(second[[1, 4, 6]], toy.plain(later)[[1, 4, 6]], atol=1e-5)
    assert np.array_equal(second[[0, 2, 3, 5, 7, 8]], first[[0, 2, 3, 5, 7, 8]])
    assert np.abs(second - toy.plain(later))[0].max() > 0.01


def test_a_change_that_is_not_live_is_not_seen() -> None:
    """A slot is read as it was when it was last live, until it is live again."""
    toy = Toy(1)
    canvas = LiveCanvas(toy.live, layers=1)
    canvas.denoise(START, EVERYTHING)
    later = changed(START, s1=2, s4=7)
    found = canvas.denoise(later, some(4, 6))
    np.testing.assert_allclose(found[6], toy.plain(changed(START, s4=7))[6], atol=1e-5)
    found = canvas.denoise(later, some(1, 6))
    np.testing.assert_allclose(found[6], toy.plain(later)[6], atol=1e-5)


@pytest.mark.parametrize("layers", [2, 4])
def test_more_layers_are_an_approximation_until_refreshed(layers: int) -> None:
    """Skipped slots would have changed, and are read as they were."""
    toy = Toy(layers)
    canvas = LiveCanvas(toy.live, layers=layers)
    canvas.denoise(START, EVERYTHING)
    later = changed(START, s1=2, s4=7)
    found = canvas.denoise(later, some(1, 4, 6))
    assert np.abs(found - toy.plain(later))[[1, 4, 6]].max() > 0.01
    np.testing.assert_allclose(canvas.denoise(later, EVERYTHING), toy.plain(later), atol=1e-5)
    canvas.denoise(START, some(2))
    canvas.forget()
    np.testing.assert_allclose(canvas.denoise(later, some(2)), toy.plain(later), atol=1e-5)


def test_a_prompt_can_be_left_out_exactly_iff_it_does_not_see_the_canvas() -> None:
    """There are three prompt positions, six slots, and four layers."""
    later = changed(START, s4=7, s8=1)
    slots = some(*range(3, SLOTS))
    for prompt, exact in ((3, True), (0, False)):
        toy = Toy(4, prompt=prompt)
        canvas = LiveCanvas(toy.live, layers=4)
        canvas.denoise(START, EVERYTHING)
        error = np.abs(canvas.denoise(later, slots) - toy.plain(later))[3:].max()
        assert (error < 1e-4) == exact
        assert exact or error > 0.01


def test_nothing_live_costs_no_pass_and_another_length_starts_over() -> None:
    """The returned array belongs to the caller."""
    toy = Toy(2)
    canvas = LiveCanvas(toy.live, layers=2)
    first = canvas.denoise(START, EVERYTHING)
    first[:] = 0
    later = changed(START, s1=2)
    np.testing.assert_allclose(canvas.denoise(later, some()), toy.plain(START), atol=1e-5)
    assert canvas.passes == 1

    def short(row: Any, through: SlotPass) -> Any:
        through.put(torch.zeros(HEADS, len(through.live), 1), torch.zeros(HEADS, len(through.live), 1))
        return np.ones((len(through.live), SIZE), dtype=np.float32) * through.live.numpy()[:, None]

    shrinking = LiveCanvas(short, layers=1)
    for length in (5, 3):
        found = shrinking.denoise(np.zeros(length, dtype=np.int32), np.zeros(length, dtype=bool))
        assert found[:, 0].tolist() == list(range(length))


def test_a_pass_that_breaks_off_leaves_nothing() -> None:
    """Some layers were written and others not: the next pass runs every slot again."""
    toy = Toy(3)
    canvas = LiveCanvas(toy.live, layers=3)
    canvas.denoise(START, EVERYTHING)
    later = changed(START, s1=2)
    projection = toy.projections[1]
    toy.projections[1] = projection[:, :5]
    with pytest.raises(RuntimeError):
        canvas.denoise(later, some(1))
    toy.projections[1] = projection
    np.testing.assert_allclose(canvas.denoise(later, some(1)), toy.plain(later), atol=1e-5)


def test_misuse_is_refused() -> None:
    """A pass that skips a slot never run, and one that skips a layer, are refused."""
    cache = SlotCache(2, 4)
    assert cache.missing.all()
    with pytest.raises(ValueError, match="slot 2 is not"):
        cache.begin(torch.tensor([0, 1, 3]))
    with pytest.raises(ValueError, match="all 2 layers; found 1"), cache.begin(torch.arange(4)) as through:
        through.put(torch.zeros(1, 4, 3), torch.zeros(1, 4, 3))
    assert cache.missing.all()
    for wrong in (1, 2):  # also in a later pass, which finds all layers there
        with cache.begin(torch.arange(4)) as through:
            for _ in range(2):
                through.put(torch.zeros(1, 4, 3), torch.zeros(1, 4, 3))
        with pytest.raises(ValueError, match="all 2 layers"), cache.begin(torch.arange(wrong)) as through:
            through.put(torch.zeros(1, wrong, 3), torch.zeros(1, wrong, 3))
        assert cache.missing.all()
    with cache.begin(torch.arange(4)) as through:
        for _ in range(2):
            keys, values = through.put(torch.ones(1, 4, 3), torch.zeros(1, 4, 5))
    assert (keys.shape, values.shape) == ((1, 4, 3), (1, 4, 5))
    assert not cache.missing.any()
