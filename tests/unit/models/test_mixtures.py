"""Several tokens in one position: the embedded network against transformers, and its sessions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from structgen.decode import Greedy, generate
from structgen.decode.sampling import sample
from structgen.engine import Vocabulary
from structgen.errors import GenerationError
from structgen.frontends.regex import regex
from structgen.methods.strategies import Superposed
from structgen.models import HashModel
from structgen.models.protocol import Extension, SuperposableSession

torch = pytest.importorskip("torch")

IDS = [5, 80, 3, 261, 99, 5, 17]
MIXTURES: list[dict[int, float]] = [
    {7: 0.5, 130: 0.3, 42: 0.2},
    {200: 1.0},
    {263: 0.999, 0: 0.001},
    {5: 0.25, 6: 0.25, 7: 0.25, 8: 0.25},
]
VOCABULARY = Vocabulary([b"", b"a", b"b", b"ab", b"c"], eos=[0])


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> Any:
    return load(tiny_folder, torch.float32)


def load(folder: Path, dtype: Any) -> Any:
    from structgen.models.llama.model import LlamaModel

    return LlamaModel(folder, name="tiny", device=torch.device("cpu"), dtype=dtype)


@pytest.fixture(scope="module")
def reference(tiny_folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()


def by_hand(reference: Any, positions: Sequence[Mapping[int, float]]) -> Any:
    """One pass of transformers over mixed embeddings, without a cache."""
    table = reference.get_input_embeddings().weight.detach().numpy().astype(np.float64)
    mixed = np.stack([sum(weight * table[token] for token, weight in each.items()) for each in positions])
    with torch.inference_mode():
        return reference(inputs_embeds=torch.tensor(mixed, dtype=torch.float32)[None]).logits[0].numpy()


def plain(ids: Sequence[int]) -> list[dict[int, float]]:
    return [{token: 1.0} for token in ids]


@pytest.mark.parametrize("calls", [[4], [1, 1, 1, 1], [1, 3], [3, 1]])
def test_mixtures_are_mixed_embeddings(model: Any, reference: Any, calls: list[int]) -> None:
    """They may be split into calls, and stand after a prompt and before more tokens."""
    expected = by_hand(reference, [*plain(IDS), *MIXTURES, *plain([9, 11])])
    session = model.start()
    assert isinstance(session, SuperposableSession)
    session.extend(IDS)
    at = 0
    for count in calls:
        row = session.extend_mixed(MIXTURES[at : at + count])
        at += count
        assert row.shape == (264,)
        assert row.dtype == np.float32
        np.testing.assert_allclose(row, expected[len(IDS) + at - 1], atol=1e-4)
    assert (session.length, session.forwards) == (len(IDS) + 4, 1 + len(calls))
    np.testing.assert_allclose(session.extend_all([9, 11]), expected[-2:], atol=1e-4)
    # With only the heaviest token in each position the comparison would fail.
    heaviest = by_hand(reference, plain([*IDS, *(max(each, key=lambda token: each[token]) for each in MIXTURES)]))
    assert np.abs(heaviest[-1] - expected[-3]).max() > 0.1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_token_is_that_token_exactly(tiny_folder: Path, dtype: str) -> None:
    """They agree bit by bit, also with a weight that is 1 up to rounding."""
    model = load(tiny_folder, getattr(torch, dtype))
    tokens, mixtures = model.start(), model.start()
    for token in [*IDS, 263, 0]:
        assert np.array_equal(tokens.extend([token]), mixtures.extend_mixed([{token: 1 - 5e-7}]))
    assert np.array_equal(tokens.extend(IDS), mixtures.extend_mixed(plain(IDS)))


def test_going_back_and_branching_off(model: Any, reference: Any) -> None:
    """Mixtures leave no trace after a truncation, nor in other sessions that share the cache."""
    session = model.start()
    session.extend((IDS * 20)[:130])
    other_session = session.fork()
    session.extend_mixed(MIXTURES)
    after = session.fork()
    expected = by_hand(reference, plain([*(IDS * 20)[:130], 9]))[-1]
    np.testing.assert_allclose(other_session.extend([9]), expected, atol=1e-4)
    session.truncate(132)
    mixed = [*plain((IDS * 20)[:130]), *MIXTURES]
    np.testing.assert_allclose(session.extend([9]), by_hand(reference, [*mixed[:132], {9: 1.0}])[-1], atol=1e-4)
    np.testing.assert_allclose(after.extend([9]), by_hand(reference, [*mixed, {9: 1.0}])[-1], atol=1e-4)
    session.truncate(130)
    np.testing.assert_allclose(session.extend([9]), expected, atol=1e-4)
    rows = model.extend_many([Extension(after, [11], False), Extension(other_session, [11], False)])
    np.testing.assert_allclose(rows[0], by_hand(reference, [*mixed, {9: 1.0}, {11: 1.0}])[-1], atol=1e-4)


@pytest.mark.parametrize(
    ("mixtures", "problem"),
    [
        ([], "no tokens"),
        ([{}], "positive and sum to 1"),
        ([{1: 0.5, 2: 0.4}], "positive and sum to 1"),
        ([{1: 1.5, 2: -0.5}], "positive and sum to 1"),
        ([{1: 1.0, 2: 0.0}], "positive and sum to 1"),
        ([{1: float("nan")}], "positive and sum to 1"),
        ([{1: float("inf")}], "positive and sum to 1"),
        ([{1: 1.0}, {1: 0.5, 264: 0.5}], "no token has the id 264"),
        ([{-1: 0.5, 1: 0.5}], "no token has the id -1"),
        ([{1: 1.0}] * 641, "1 token longer than the context"),
    ],
)
def test_what_is_no_mixture_is_refused(model: Any, mixtures: list[dict[int, float]], problem: str) -> None:
    """The sessions stay unchanged."""
    wide = Vocabulary([b"", *(b"%d" % index for index in range(263))], eos=[0])
    for session in (model.start(), HashModel(wide, max_context=640).start()):
        with pytest.raises(GenerationError, match=problem):
            session.extend_mixed(mixtures)
        assert (session.length, session.forwards) == (0, 0)


def test_hash_models_read_mixtures() -> None:
    """One token is that token; others depend on every token and weight, not on the order; the script goes on."""
    model = HashModel(VOCABULARY, seed=3)
    tokens, mixtures = model.start(), model.start()
    for token in (1, 3, 2):
        assert np.array_equal(tokens.extend([token]), mixtures.extend_mixed([{token: 1.0}]))
    assert (mixtures.length, mixtures.forwards) == (3, 3)

    def after(*mixed: dict[int, float]) -> list[float]:
        row: list[float] = model.start().extend_mixed(mixed).tolist()
        return row

    distributions = [
        after({1: 0.5, 2: 0.5}),
        after({1: 0.6, 2: 0.4}),
        after({1: 0.4, 2: 0.6}),
        after({1: 0.5, 4: 0.5}),
        after({1: 0.5, 2: 0.5}, {1: 1.0}),
        after({1: 1.0}),
    ]
    assert all(distributions[one] != distributions[two] for one in range(len(distributions)) for two in range(one))
    assert after({2: 0.4, 1: 0.6}) == distributions[1]
    writer = HashModel(VOCABULARY, seed=3, writes="abc").start()
    assert writer.extend_mixed([{3: 0.6, 4: 0.4}]).argmax() == 4
    writer.truncate(0)
    assert writer.extend_mixed([{3: 0.4, 4: 0.6}]).argmax() == 3


def test_superposed_drafts_of_a_network(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network runs as often as for one sequence: the prompt, the positions, and all drafts together."""
    passes: list[int] = []
    forward = model.network.forward

    def counted(parts: Any, **options: Any) -> Any:
        passes.append(len(parts))
        return forward(parts, **options)

    monkeypatch.setattr(model.network, "forward", counted)
    sampled = sample(model, "the", regex("[a-e]{4,9}"), sampler=Superposed(5), max_tokens=9)
    assert all(re.fullmatch("[a-e]{4,9}", result.text) for result in sampled.results)
    assert passes == [*[1] * (len(passes) - 1), 5]
    assert max(len(result.tokens) for result in sampled.results) + 2 <= len(passes) <= 9 + 2
    assert sampled.forwards == len(passes)
    (best,) = sample(model, "the", regex("[a-e]{4,9}"), sampler=Superposed(1), max_tokens=9).results
    greedy = generate(model, "the", regex("[a-e]{4,9}"), sampler=Greedy(), max_tokens=9)
    assert best.tokens == greedy.tokens
    assert best.logprob == pytest.approx(greedy.logprob, abs=1e-3)
