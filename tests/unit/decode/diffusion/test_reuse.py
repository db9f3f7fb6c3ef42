"""The live slots of the reuse rules: by hand, against the published loops, and with a denoiser that caches slots."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from structgen.decode.diffusion.forward_pass import DelayedReuse, DualReuse, PrefixReuse, Reuse
from structgen.decode.diffusion.mean_field import FREE
from structgen.engine import Vocabulary
from structgen.models.diffusion import HashDiffusion

RULES: list[Reuse] = [PrefixReuse(), DualReuse(), DelayedReuse(3), DelayedReuse(3, window=2), DelayedReuse(1)]


def canvas(text: str) -> Any:
    """A canvas: ``.`` is a free slot, a letter a token."""
    return np.array([FREE if letter == "." else ord(letter) for letter in text], dtype=np.int32)


def shown(live: Any) -> str:
    """Live slots as ``x``."""
    assert live.dtype == np.bool_
    return "".join("x" if slot else "-" for slot in live)


def ask(rule: Reuse, before: str, after: str, step: int, block: tuple[int, int] = (3, 6)) -> str:
    """The live slots of a step in the middle one of three blocks."""
    return shown(rule.live_slots(block, canvas(before), canvas(after), step=step))


@pytest.mark.parametrize("rule", RULES)
def test_a_block_begins_with_a_refresh(rule: Reuse) -> None:
    """Every slot runs, whatever changed."""
    assert ask(rule, "abc......", "abc......", 0) == "xxxxxxxxx"
    assert ask(rule, "abc......", "abc.d....", 0) == "xxxxxxxxx"
    assert not rule.lossless


def test_prefix_reuse_runs_from_the_block_on() -> None:
    """Filled slots of the block run too."""
    assert ask(PrefixReuse(), "abc......", "abc.d....", 1) == "---xxxxxx"
    assert ask(PrefixReuse(), "abc.d....", "abcfd....", 7) == "---xxxxxx"


def test_dual_reuse_runs_the_block() -> None:
    """Slots before and after the block do not run."""
    assert ask(DualReuse(), "abc......", "abc.d....", 1) == "---xxx---"
    assert ask(DualReuse(), "abc.d....", "abcfd....", 7) == "---xxx---"


def test_delayed_reuse_runs_a_committed_slot_once_more() -> None:
    """Free slots always run; every third step is a refresh."""
    rule = DelayedReuse(3)
    assert ask(rule, "abc......", "abc.d....", 1) == "---xxxxxx"
    assert ask(rule, "abc.d....", "abcfd....", 2) == "---x-xxxx"
    assert ask(rule, "abcfd....", "abcfdg...", 3) == "xxxxxxxxx"
    assert ask(rule, "abcfdg...", "abcfdgh..", 4) == "------xxx"
    assert ask(DelayedReuse(1), "abcfd....", "abcfdg...", 1) == "xxxxxxxxx"


def test_a_window_runs_the_nearest_free_slots() -> None:
    """On ties the left one runs first; filled slots and slots that run anyway do not count."""
    assert ask(DelayedReuse(9, window=0), "abc......", "abc..d...", 1) == "-----x---"
    assert ask(DelayedReuse(9, window=1), "abc......", "abc..d...", 1) == "----xx---"
    assert ask(DelayedReuse(9, window=2), "abc......", "abc..d...", 1) == "----xxx--"
    assert ask(DelayedReuse(9, window=3), "abc......", "abc..d...", 1) == "---xxxx--"
    assert ask(DelayedReuse(9, window=2), "abc..d...", "abc.ed...", 2) == "---xx-x--"
    assert ask(DelayedReuse(9, window=1), "abc......", "abcd.e...", 1) == "---xxxx--"
    assert ask(DelayedReuse(9, window=99), "abc......", "abcd.....", 1) == "---xxxxxx"


def test_slots_that_changed_elsewhere_are_live_once() -> None:
    """They were committed by a grammar outside the block, or freed again."""
    for rule, usual in ((PrefixReuse(), "---xxxxxx"), (DualReuse(), "---xxx---")):
        assert ask(rule, "a........", "a.b..c..d", 1) == usual[:2] + "x" + usual[3:8] + "x"
        assert ask(rule, "a.b..c..d", "a.b.ec..d", 2) == usual
        assert ask(rule, "abc......", "ab....c..", 1)[2] == "x"
    assert ask(DelayedReuse(9), "abc.de...", "abc..e...", 1) == "---xx-xxx"


def test_without_a_change_a_delayed_rule_refreshes() -> None:
    """A window around nothing would never update the logits."""
    assert ask(DelayedReuse(9, window=2), "abc......", "abc......", 1) == "xxxxxxxxx"


@given(data=st.data(), steps=st.integers(1, 8), interval=st.integers(1, 4), block=st.sampled_from([2, 4, 8]))
def test_they_are_the_published_loops(data: st.DataObject, steps: int, interval: int, block: int) -> None:
    """Slots are committed in any order, some in each step: the live slots are those that the published loops run.

    Fast-dLLM feeds all, then those from the block on (prefix) or those of the block (dual).  dKV-Cache-Decode feeds all
    in step 0, in step 1 and where the interval divides the step, else all but those that were filled two commits ago.
    """
    slots = 8
    now = np.full(slots, FREE, dtype=np.int32)
    for start in range(0, slots, block):
        bounds = (start, start + block)
        before, filled_before, filled = now.copy(), None, None
        for step in range(steps):
            free = [slot for slot in range(*bounds) if now[slot] == FREE]
            if not free:
                break
            arguments = (bounds, before, now)
            positions = np.arange(slots)
            prefix = positions >= start if step else positions >= 0
            dual = prefix & (positions < start + block) if step else prefix
            assert np.array_equal(PrefixReuse().live_slots(*arguments, step=step), prefix)
            assert np.array_equal(DualReuse().live_slots(*arguments, step=step), dual)
            live = DelayedReuse(interval).live_slots(*arguments, step=step)
            if step > 1 and step % interval:
                assert filled_before is not None
                assert np.array_equal(live, ~filled_before)
            elif step % interval == 0:
                assert live.all()
            else:  # step 1: the published loop has no keys yet for slots filled in earlier blocks
                assert np.array_equal(live, positions >= start)
            before = now.copy()
            for slot in data.draw(st.lists(st.sampled_from(free), min_size=1, max_size=3, unique=True)):
                now[slot] = 65
            filled_before, filled = filled, now != FREE
        now[start : start + block] = 65


@pytest.mark.parametrize("rule", RULES)
def test_a_denoiser_that_keeps_slots_follows(rule: Reuse) -> None:
    """In a network of one layer the live slots get the logits of a full pass: no change is overlooked."""
    vocabulary = Vocabulary([b"", b"a", b"b", b""], eos=[0], special={3: "<mask>"})
    model = HashDiffusion(vocabulary)
    denoiser = model.start([])
    now = np.full(9, FREE, dtype=np.int32)
    before = now.copy()
    generator = np.random.default_rng(3)
    for block in ((0, 3), (3, 6), (6, 9)):
        for step in range(3):
            free = np.flatnonzero(now[block[0] : block[1]] == FREE) + block[0]
            if not len(free):
                break
            live = rule.live_slots(block, before, now, step=step)
            asked = np.where(now == FREE, model.mask_token, now).astype(np.int32)
            found = denoiser.denoise_live(asked, live)
            full = model.start([]).denoise(asked[None])[0]
            assert np.array_equal(found[live], full[live])
            before = now.copy()
            now[generator.choice(free)] = generator.integers(1, 3)
            if (block[0], step) == (0, 1):
                now[7] = 2  # forced far from the block
    assert (now != FREE).all()


def test_bad_arguments_are_refused() -> None:
    """Bad arguments of the rules and of a step are refused."""
    with pytest.raises(ValueError, match="interval must be at least 1"):
        DelayedReuse(0)
    with pytest.raises(ValueError, match="window must be 0 or more"):
        DelayedReuse(2, window=-1)
    for rule in RULES:
        for block in ((-1, 2), (2, 2), (3, 10)):
            with pytest.raises(ValueError, match="block must be slots of the canvas"):
                ask(rule, "........a", ".........", 1, block)
        with pytest.raises(ValueError, match="as many slots"):
            ask(rule, "...", ".........", 1)
        with pytest.raises(ValueError, match="step must be 0 or more"):
            ask(rule, ".........", ".........", -1)
