"""Sessions of llama.cpp: random operations against fresh sessions, and the limits of the cache."""

from __future__ import annotations

import gc
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from hypothesis import given, settings
from tree_session_machine import STEPS, Lives, path as path_to, prefix, random_tree, sequential

from structgen.decode import Multinomial, generate
from structgen.engine import compile
from structgen.errors import GenerationError
from structgen.frontends.regex import regex
from structgen.models import LanguageModel, PackedModel, load_model
from structgen.models.llama_cpp import runner
from structgen.models.llama_cpp.model import LlamaCppModel
from structgen.models.protocol import Extension, Logits, TreeSession

TOLERANCE = 0.05
"""Keys and values are stored in float16; logits reach 20, and wrong ones differ by more than 0.1."""
IDS = [5, 80, 3, 261, 99, 5, 17, 200, 42, 7, 7, 130]


@pytest.fixture(scope="module")
def model(tiny_gguf: Path) -> LlamaCppModel:
    """The tiny model."""
    return LlamaCppModel(tiny_gguf, threads=1)


def test_it_is_a_language_model(model: LlamaCppModel) -> None:
    """It implements the protocols; logits are float32, as wide as the vocabulary."""
    session = model.start()
    assert isinstance(model, LanguageModel)
    assert isinstance(model, PackedModel)
    assert isinstance(session, TreeSession)
    logits = session.extend(IDS)
    assert logits.dtype == np.float32
    assert logits.shape == (model.vocabulary.size,) == (264,)
    assert (session.length, session.forwards) == (len(IDS), 1)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(steps=STEPS)
def test_sessions(model: LlamaCppModel, steps: list[tuple[str, int]]) -> None:
    """Trees, forks, cuts and passes of several sessions give what fresh sessions give."""
    Lives(model, most=4, tolerance=TOLERANCE, tokens=261).follow(steps)


def test_a_small_cache_gives_the_same(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions that lose their cells run their tokens again."""
    monkeypatch.setattr(runner, "_FIRST_CELLS", 256)
    monkeypatch.setattr(runner, "_MAX_CELLS", 256)
    monkeypatch.setattr(runner, "_FIRST_SEQUENCES", 2)
    monkeypatch.setattr(runner, "_MAX_SEQUENCES", 4)
    model = LlamaCppModel(tiny_gguf, threads=1)
    random = np.random.default_rng(3)
    sessions = [model.start() for _ in range(12)]
    texts: list[list[int]] = [[] for _ in sessions]
    for _ in range(60):
        at = int(random.integers(len(sessions)))
        news = [int(token) for token in random.integers(261, size=random.choice([1, 3, 90]))]
        if len(texts[at]) + len(news) > 600:
            sessions[at].truncate(5)
            del texts[at][5:]
        texts[at] += news
        found = sessions[at].extend(news)
        np.testing.assert_allclose(found, model.start().extend(texts[at]), atol=TOLERANCE)


def test_the_cache_grows_with_its_content(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks keep sharing what was written before, and nothing is run again."""
    monkeypatch.setattr(runner, "_FIRST_CELLS", 256)
    monkeypatch.setattr(runner, "_FIRST_SEQUENCES", 2)
    model = LlamaCppModel(tiny_gguf, threads=1)
    session = model.start()
    session.extend(IDS * 20)
    forks = [session.fork() for _ in range(9)]
    for at, fork in enumerate(forks):
        fork.extend([at] * 30)
    rows = [fork.extend([7]) for fork in forks]
    assert all(fork.place.length == 271 for fork in forks)
    for at, row in enumerate(rows):
        np.testing.assert_allclose(row, model.start().extend([*IDS * 20, *[at] * 30, 7]), atol=TOLERANCE)


def test_a_tree_that_does_not_fit_leaves_the_session(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that the cache cannot hold is refused, and the sequence goes on."""
    monkeypatch.setattr(runner, "_FIRST_SEQUENCES", 4)
    monkeypatch.setattr(runner, "_MAX_SEQUENCES", 4)
    model = LlamaCppModel(tiny_gguf, threads=1)
    session = model.start()
    session.extend(IDS)
    random = np.random.default_rng(1)
    wide = random_tree(random, 1, tokens=261)._replace(token_ids=list(range(8)), parents=[-1] * 8)
    with pytest.raises(GenerationError, match=r"do not fit the cache of llama\.cpp"):
        session.extend_tree([3], wide)
    assert session.length == len(IDS)
    np.testing.assert_allclose(session.extend([3]), model.start().extend([*IDS, 3]), atol=TOLERANCE)


def test_a_full_context_is_an_error_before_the_pass(model: LlamaCppModel) -> None:
    """The message says how long the context is."""
    session = model.start()
    session.extend([5] * 639)
    with pytest.raises(GenerationError, match=r"2 tokens longer than the context.*the context holds 640"):
        session.extend([1, 2, 3])
    assert session.length == 639
    session.extend([1])


def test_long_requests_run_in_several_calls(model: LlamaCppModel) -> None:
    """512 rows are the most of one call; a tree may lie across the border."""
    ids = [int(token) for token in np.random.default_rng(5).integers(261, size=600)]
    rows = model.start().extend_all(ids)
    session = model.start()
    np.testing.assert_allclose(rows[:300], session.extend_all(ids[:300]), atol=TOLERANCE)
    np.testing.assert_allclose(rows[300:], session.extend_all(ids[300:]), atol=TOLERANCE)
    tree = random_tree(np.random.default_rng(2), 12, tokens=261)
    other = model.start()
    found = other.extend_tree(ids[:506], tree)
    np.testing.assert_allclose(found[1:], sequential(model, ids[:506], tree), atol=TOLERANCE)
    other.keep(path_to(tree, 11))
    expected = model.start().extend([*ids[:506], *prefix(tree, 11), 9])
    np.testing.assert_allclose(other.extend([9]), expected, atol=TOLERANCE)


@pytest.mark.model
def test_logits_do_not_depend_on_what_shares_a_pass() -> None:
    """Not by a bit, for requests of fewer than 64 tokens of quantised weights: beside others, and in parts."""
    pytest.importorskip("xllamacpp")
    model = load_model(runtime="llama.cpp", device="cpu", threads=1)
    assert isinstance(model, LlamaCppModel)
    prompts = [[100 + at * step for step in range(1, 13)] for at in range(1, 9)]
    alone = []
    for prompt in prompts:
        with closing(model.start()) as session:
            alone.append(session.extend(prompt))
    for size in (12, 3):
        with ExitStack() as stack:
            sessions = [stack.enter_context(closing(model.start())) for _ in prompts]
            for at in range(0, 12, size):
                parts = zip(sessions, (prompt[at : at + size] for prompt in prompts), strict=True)
                rows = model.extend_many([Extension(session, part, False) for session, part in parts])
            np.testing.assert_array_equal(alone, rows)


@pytest.mark.model
def test_one_row_has_the_logits_of_several() -> None:
    """Not a bit depends on draft tokens or threads, of quantised weights, beyond 256 cells."""
    pytest.importorskip("xllamacpp")
    prompt = [100 + 7 * at for at in range(270)]
    ids = prompt[:10]
    found: list[Logits] = []
    for threads in (1, 2):
        model = load_model(runtime="llama.cpp", device="cpu", threads=threads)
        with closing(model.start()) as session:
            session.extend(prompt)
            found.append(session.extend_all(ids))
            session.truncate(len(prompt))
            found.append(np.array([session.extend([token]) for token in ids]))
    for rows in found[1:]:
        np.testing.assert_array_equal(rows, found[0])


def test_no_row_stays_of_those_that_go_with_others(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that is as large as the text has room for each row, though some go in twice."""
    monkeypatch.setattr(runner, "_FIRST_CELLS", 256)
    monkeypatch.setattr(runner, "_MAX_CELLS", 256)
    model = LlamaCppModel(tiny_gguf, threads=2)
    random = np.random.default_rng(4)
    ids = [int(token) for token in random.integers(261, size=600)]
    session = model.start()
    for token in ids:
        row = session.extend([token])
    np.testing.assert_allclose(row, model.start().extend(ids), atol=TOLERANCE)
    assert model.runner._cells <= 1024


def test_no_sequence_leaks(model: LlamaCppModel) -> None:
    """Sessions, forks and trees that nothing refers to give their sequences back."""
    gc.collect()
    runner_ = model.runner
    runner_._collect()
    before = len(runner_._free), runner_._sequences
    random = np.random.default_rng(9)
    for _ in range(300):
        session = model.start()
        session.extend(IDS)
        fork = session.fork()
        fork.extend_tree([1], random_tree(random, 6, tokens=261))
        if random.integers(2):
            fork.keep([0])
        if random.integers(2):
            session.close()
        del session, fork
    gc.collect()
    runner_._collect()
    after = len(runner_._free), runner_._sequences
    assert after[1] - after[0] == before[1] - before[0]


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_ten_thousand_generations_leave_nothing(model: LlamaCppModel) -> None:
    """Neither sequences nor cells, nor memory that grows with their number."""
    constraint = compile(regex("[a-c]{3,6}"), model.vocabulary)
    runner_ = model.runner
    held: list[tuple[int, int, int]] = []
    for count in range(10_000):
        generate(model, f"p{count % 50}", constraint, max_tokens=8, sampler=Multinomial(), seed=count, drafter=None)
        if count in (999, 9_999):
            gc.collect()
            runner_._collect()
            held.append((runner_._sequences - len(runner_._free), runner_._cells, _resident_kib()))
    (used, cells, kib), last = held
    assert last[:2] == (used, cells)
    assert last[2] < kib + 20_000


def _resident_kib() -> int:
    """The memory of this process now; 0 where the system does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS:")), 0)


def test_threads_share_a_model(model: LlamaCppModel) -> None:
    """Sessions of several threads take turns."""
    expected = model.start().extend([*IDS, *range(10)])
    found: list[np.ndarray] = []

    def work() -> None:
        session = model.start()
        session.extend(IDS)
        for token in range(10):
            row = session.extend([token])
        found.append(row)

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for row in found:
        np.testing.assert_allclose(row, expected, atol=TOLERANCE)
