"""Sessions of the Llama that share their caches: the answers of fresh sessions, and the memory of one prompt."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from structgen.models.llama import attended, attention as llama_attention, cache as llama_cache
from structgen.models.llama.cache import Segment
from structgen.models.llama.model import LlamaModel, LlamaSession
from structgen.models.protocol import Extension

torch = pytest.importorskip("torch")

TOLERANCE = 1e-4
"""Logits of the tiny model reach 20; wrong ones differ by more than 0.1."""
PROMPT = [5, 80, 3, 261, 99, 5, 17, 200, 42, 7] * 30


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> LlamaModel:
    """The tiny model in float32 on the CPU."""
    return load(tiny_folder)


@pytest.fixture(scope="module")
def reference(tiny_folder: Path) -> Any:
    """The same folder, read by transformers."""
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()


def load(folder: Path, dtype: Any = torch.float32) -> LlamaModel:
    """Load a folder as the embedded model is loaded."""
    return LlamaModel(folder, name="tiny", device=torch.device("cpu"), dtype=dtype)


def fresh_logits(model: LlamaModel, ids: list[int]) -> Any:
    """The logits after each token, of a session that shares nothing."""
    return model.start().extend_all(ids)


def segments(*sessions: LlamaSession) -> set[Segment]:
    """All segments that hold tokens of the sessions."""
    return {link.segment for session in sessions for link in session._cache.links}


def held_bytes(*sessions: LlamaSession) -> int:
    """The memory of the sessions' caches, each storage once."""
    storages = {each.entries.untyped_storage() for each in segments(*sessions)}
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["extend", "extend_all", "many", "many", "fork", "fork", "fork", "truncate", "truncate", "close"]
        ),
        st.integers(0, 2**32 - 1),
    ),
    min_size=3,
    max_size=25,
)


def follow(model: LlamaModel, steps: list[tuple[str, int]], *, most: int) -> None:
    """Follow the steps with a few sessions, and compare each answer with a fresh session's.

    Args:
        model: see above.
        steps: what to do, and what decides the rest.
        most: sessions at a time.
    """
    sessions: list[tuple[LlamaSession, list[int]]] = [(model.start(), [])]

    def extend(news: dict[int, list[int]], *, all_positions: bool) -> None:
        for index, new in news.items():
            sessions[index][1].extend(new)
        rows = model.extend_many([Extension(sessions[index][0], new, all_positions) for index, new in news.items()])
        for (index, new), row in zip(news.items(), rows, strict=True):
            expected = fresh_logits(model, sessions[index][1])[-len(new) :]
            np.testing.assert_allclose(row, expected if all_positions else expected[-1], atol=TOLERANCE)

    for step, seed in steps:
        random = np.random.default_rng(seed)
        at = int(random.integers(len(sessions)))
        session, ids = sessions[at]
        if step == "fork" and len(sessions) < most:
            sessions.append((session.fork(), list(ids)))
        elif step == "truncate":
            excess = random.choice([1, 2, 4, int(random.integers(len(ids) + 1))])
            del ids[max(len(ids) - excess, 0) :]
            session.truncate(len(ids))
        elif step == "close":
            session.close()
            ids.clear()
        else:
            several = random.permutation(len(sessions))[: random.integers(1, most + 1)]
            news = {
                int(index): [int(token) for token in random.integers(264, size=random.choice([1, 1, 1, 1, 2, 5, 20]))]
                for index in (several if step == "many" else [at])
            }
            extend(news, all_positions=step == "extend_all" or seed % 3 == 0)
        assert [session.length for session, _ in sessions] == [len(ids) for _, ids in sessions]
    extend({index: [index] for index in range(len(sessions))}, all_positions=False)


@pytest.mark.exhaustive
@settings(max_examples=60, deadline=None, derandomize=True)
@given(steps=STEPS)
def test_answers_depend_on_the_tokens_alone(tiny_folder: Path, steps: list[tuple[str, int]]) -> None:
    """Earlier forks, cuts, closes and shared passes do not matter; short segments make all cases occur."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama_cache, "_COPIED", 2)
        patch.setattr(llama_cache, "_FIRST_CAPACITY", 1)
        patch.setattr(llama_attention, "_WORTHWHILE", 4)
        patch.setattr(llama_attention, "_WORTHWHILE_NATIVELY", 4)
        patch.setattr(llama_attention, "_NATIVE_ROWS", 2)
        patch.setattr(llama_attention, "_SHORT", 5)
        follow(MODELS.setdefault(tiny_folder, load(tiny_folder)), steps, most=5)


MODELS: dict[Path, LlamaModel] = {}


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.usefixtures("ways")
def test_every_way_of_summing_gives_the_same(model: LlamaModel, seed: int) -> None:
    """Shared, padded and separate attention agree with fresh sessions, on long random walks."""
    random = np.random.default_rng(seed)
    kinds = ["extend", "extend_all", "many", "many", "many", "many", "fork", "fork", "fork", "truncate", "truncate"]
    follow(model, [(str(random.choice(kinds)), int(random.integers(2**32))) for _ in range(60)], most=6)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("ways")
def test_generations_of_forks_equal_transformers(model: LlamaModel, reference: Any) -> None:
    """Sequences that fork repeatedly, as particles do, agree, a token at a time in one pass."""
    random = np.random.default_rng(3)
    base = model.start()
    base.extend(PROMPT)
    particles = [(base.fork(), list(PROMPT)) for _ in range(6)]
    for step in range(50):
        for _, ids in particles:
            ids.append(int(random.integers(264)))
        rows = model.extend_many([Extension(session, ids[-1:], False) for session, ids in particles])
        if step % 7 == 6:
            for row, (_, ids) in zip(rows, particles, strict=True):
                with torch.inference_mode():
                    expected = reference(input_ids=torch.tensor([ids])).logits[0, -1].numpy()
                np.testing.assert_allclose(row, expected, atol=TOLERANCE)
            parents = [particles[at] for at in random.integers(6, size=6)]
            particles = [(session.fork(), list(ids)) for session, ids in parents]
    assert base.length == len(PROMPT)


def test_forks_hold_the_prompt_once(model: LlamaModel) -> None:
    """64 forks add nothing; a token of each adds as much as a token needs, and closing them frees it."""
    base = model.start()
    base.extend(PROMPT)
    alone = held_bytes(base)
    assert alone >= len(PROMPT) * 2 * 3 * 8 * 4  # layers, widths and bytes of the tiny model
    forks = [base.fork() for _ in range(64)]
    assert held_bytes(base, *forks) == alone
    model.extend_many([Extension(fork, [7], False) for fork in forks])
    capacity = llama_cache._FIRST_CAPACITY
    assert held_bytes(base, *forks) == alone + 64 * alone * capacity // len(PROMPT)
    tails = [weakref.ref(link.segment) for fork in forks for link in fork._cache.links[1:]]
    assert len(tails) == 64
    for fork in forks:
        fork.close()
    assert [tail() for tail in tails] == [None] * 64
    assert held_bytes(base, *forks) == alone


def test_a_fork_copies_no_more_than_a_short_tail(model: LlamaModel) -> None:
    """However long the sequence and its tail are, only entries of a short tail are copied."""
    base = model.start()
    base.extend(PROMPT)
    for more in (0, 5, llama_cache._COPIED, 40):
        if more:
            base.extend([9] * more)
        fork = base.fork()
        assert all(segment.entries.shape[3] <= llama_cache._COPIED for segment in segments(fork) - segments(base))
        reference = fork.fork()
        reference.extend([8] * (more + 1))
        grandchild = reference.fork()
        copied = segments(grandchild) - segments(reference)
        assert len(copied) == (more + 1 < llama_cache._COPIED)
        np.testing.assert_allclose(
            grandchild.extend([1]),
            fresh_logits(model, [*PROMPT, *[9] * (base.length - len(PROMPT)), *[8] * (more + 1), 1])[-1],
            atol=TOLERANCE,
        )


def test_the_one_that_goes_on_keeps_its_segment(model: LlamaModel) -> None:
    """A session with forks goes on writing in place; it needs another segment only after a cut into shared tokens."""
    base = model.start()
    base.extend(PROMPT)
    forks = [base.fork() for _ in range(2)]
    base.extend([7])
    assert len(segments(base)) == 1
    base.truncate(200)
    expected = fresh_logits(model, [*PROMPT[:200], 8])[-1]
    np.testing.assert_allclose(base.extend([8]), expected, atol=TOLERANCE)
    assert len(segments(base)) == 2
    for fork in forks:
        np.testing.assert_allclose(fork.extend([8]), fresh_logits(model, [*PROMPT, 8])[-1], atol=TOLERANCE)


def test_a_fork_that_is_cut_back_does_not_write_where_another_one_did(model: LlamaModel) -> None:
    """It has lost its own segment, so it starts a new one."""
    base = model.start()
    base.extend(PROMPT)
    fork = base.fork()
    base.extend([7])
    fork.extend([8] * 40)
    reference = fork.fork()
    fork.truncate(len(PROMPT))
    np.testing.assert_allclose(fork.extend([9]), fresh_logits(model, [*PROMPT, 9])[-1], atol=TOLERANCE)
    np.testing.assert_allclose(base.extend([10]), fresh_logits(model, [*PROMPT, 7, 10])[-1], atol=TOLERANCE)
    expected = fresh_logits(model, [*PROMPT, *[8] * 40, 11])[-1]
    np.testing.assert_allclose(reference.extend([11]), expected, atol=TOLERANCE)


def test_the_last_one_has_all_in_one_segment(model: LlamaModel) -> None:
    """When its relatives are gone, a session joins its segments without a copy of the long one."""
    base = model.start()
    base.extend(PROMPT)
    (segment,) = segments(base)
    fork = base.fork()
    fork.extend([7, 8])
    base.close()
    expected = fresh_logits(model, [*PROMPT, 7, 8, 9])[-1]
    np.testing.assert_allclose(fork.extend([9]), expected, atol=TOLERANCE)
    assert segments(fork) == {segment}


def test_one_that_stays_alone_copies_what_it_shares(model: LlamaModel) -> None:
    """This happens after some passes alone, and not if it runs with others in between."""
    base = model.start()
    base.extend(PROMPT)
    fork, other = base.fork(), base.fork()
    for _ in range(2):
        for _ in range(llama_cache._ALONE):
            fork.extend([7])
        model.extend_many([Extension(fork, [7], False), Extension(other, [7], False)])
        assert segments(base) < segments(fork)
    for _ in range(llama_cache._ALONE + 1):
        row = fork.extend([7])
    assert len(segments(fork)) == 1
    assert not segments(fork) & segments(base)
    np.testing.assert_allclose(row, fresh_logits(model, [*PROMPT, *[7] * (fork.length - 300)])[-1], atol=TOLERANCE)
    expected = fresh_logits(model, [*PROMPT, 7, 7, 5])[-1]
    np.testing.assert_allclose(other.extend([5]), expected, atol=TOLERANCE)


@pytest.mark.parametrize("layer", range(3))
def test_an_interrupted_pass_of_relatives_leaves_no_trace(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch, layer: int
) -> None:
    """After Ctrl-C in any layer the same tokens may be run again, or others."""
    base = model.start()
    base.extend(PROMPT)
    family = [base, base.fork(), base.fork()]
    real, calls = torch.nn.functional.silu, []

    def interrupt(x: Any) -> Any:
        calls.append(1)
        if len(calls) > layer:
            raise KeyboardInterrupt
        return real(x)

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "silu", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.extend_many([Extension(session, [1, 2][: 1 + at % 2], False) for at, session in enumerate(family)])
    assert [session.length for session in family] == [300] * 3
    family.append(family[1].fork())
    rows = model.extend_many([Extension(session, [at + 3], False) for at, session in enumerate(family)])
    for at, row in enumerate(rows):
        np.testing.assert_allclose(row, fresh_logits(model, [*PROMPT, at + 3])[-1], atol=TOLERANCE)


def test_relatives_may_live_in_different_threads(model: LlamaModel) -> None:
    """Forks that extend, cut and fork at the same time answer as if each were alone."""
    base = model.start()
    base.extend(PROMPT[:100])

    def live(session: LlamaSession, seed: int) -> list[tuple[list[int], Any]]:
        random, ids, seen = np.random.default_rng(seed), PROMPT[:100], []
        for _ in range(25):
            new = [int(token) for token in random.integers(264, size=random.choice([1, 1, 3, 40]))]
            ids = [*ids, *new]
            seen.append((ids, session.extend(new)))
            if random.integers(3) == 0:
                ids = ids[: random.integers(60, len(ids) + 1)]
                session.truncate(len(ids))
            if random.integers(3) == 0:
                session = session.fork()
        return seen

    with ThreadPoolExecutor(4) as pool:
        lives = [pool.submit(live, session, seed) for seed, session in enumerate([base, *(base.fork() for _ in "abc")])]
    for each in lives:
        for ids, row in each.result()[::4]:
            np.testing.assert_allclose(row, fresh_logits(model, ids)[-1], atol=TOLERANCE)


def test_half_precision_works_together(tiny_folder: Path) -> None:
    """In bfloat16 forks run together stay as near to float32 as one alone does."""
    model, exact = load(tiny_folder, torch.bfloat16), load(tiny_folder)
    base = model.start()
    base.extend(PROMPT)
    forks = [base.fork() for _ in range(4)]
    for fork in forks[:2]:
        fork.extend([9] * 80)
    rows = model.extend_many([Extension(fork, [11, 12][: 1 + at // 3], False) for at, fork in enumerate(forks)])
    for at, row in enumerate(rows):
        expected = fresh_logits(exact, [*PROMPT, *[9] * (80 * (at < 2)), *[11, 12][: 1 + at // 3]])[-1]
        assert row.dtype == np.float32
        assert np.abs(row - expected).max() < 0.1 * np.abs(expected).max()


@pytest.mark.parametrize("hidden", [False, True])
def test_attention_tells_its_sums(hidden: bool) -> None:
    """The kernel and the sums in float32 agree with the definition in float64."""
    random = torch.Generator().manual_seed(5)
    queries, keys, values = (10 * torch.randn(3, count, 16, generator=random) for count in (7, 40, 40))
    bias = attended.bias_of([1, 2, 3, 10, 20, 39, 40], 40, torch.device("cpu")) if hidden else None
    scores = (queries.double() / 4) @ keys.double().transpose(1, 2)
    scores = scores if bias is None else scores + bias.double()
    expected, log_sums = scores.softmax(-1) @ values.double(), scores.logsumexp(-1)
    for way in (attended.attend, attended.attend_plainly):
        found, found_log_sums = way(queries, keys, values, bias)
        torch.testing.assert_close(found.double(), expected, atol=1e-3, rtol=1e-4)
        torch.testing.assert_close(found_log_sums.double(), log_sums, atol=1e-3, rtol=1e-5)
