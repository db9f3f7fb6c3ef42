"""Logits that stay in torch: their answers are those of the host for the same numbers."""

from __future__ import annotations

from threading import Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from structgen.decode.step.distribution import log_mass, project
from structgen.decode.step.sampler import Multinomial
from structgen.engine.mask import allowed_ids
from structgen.models.protocol import ResidentLogits, SampleQuery, SamplingParams, ScoreQuery

torch = pytest.importorskip("torch")

from structgen.models.torch_logits import Residence, TorchLogits, is_resident_on  # noqa: E402  # needs torch

SIZE = 333
GREEDY = SamplingParams(temperature=0.0)


class Given:
    """A generator that gives one number."""

    def __init__(self, number: float) -> None:
        self._number = number

    def random(self) -> float:
        return self._number


def words(ids: Any, size: int = SIZE) -> bytes:
    bits = np.zeros((size + 31) // 32 * 32, dtype=np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def logits(rows: int, *, seed: int = 0, dtype: Any = torch.float32) -> Any:
    return (torch.randn((rows, SIZE), generator=torch.Generator().manual_seed(seed)) * 4).to(dtype)


SHAPES = st.one_of(
    st.just(GREEDY),
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.3, 1.0, 2.5]),
        top_k=st.sampled_from([None, 1, 7, 400]),
        top_p=st.sampled_from([None, 0.5, 0.95, 1.0]),
        min_p=st.sampled_from([None, 0.0, 0.2]),
    ),
)


@pytest.mark.exhaustive
@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    asked=st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sets(st.integers(0, SIZE - 1), min_size=1, max_size=40) | st.just(set(range(SIZE))),
            SHAPES,
            st.floats(0, 1, exclude_max=True),
            st.integers(0, SIZE - 1),
        ),
        min_size=1,
        max_size=8,
    ),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64]),
    seed=st.integers(0, 99),
)
def test_answers_are_those_of_the_host(asked: list[Any], dtype: Any, seed: int) -> None:
    """Any order of rows, masks of any size, every shape, and scored beside chosen tokens agree, in one launch."""
    residence = Residence()
    held = TorchLogits(residence, logits(5, seed=seed, dtype=dtype))
    choices = [SampleQuery(row, words(ids), shape, uniform) for row, ids, shape, uniform, _ in asked]
    scores = [ScoreQuery(row, token) for row, *_, token in asked]
    held.prefetch([*choices, *scores])
    assert residence.launches == 1
    for choice, score in zip(choices, scores, strict=True):
        row = held.host(choice.row)
        distribution = project(row, allowed_ids(np.frombuffer(choice.mask, dtype=np.int32), SIZE))
        shape = choice.shape
        if shape.temperature == 0:
            index = int(distribution.log_p.argmax())
        else:
            index = Multinomial(*shape).draw(distribution.log_p, Given(choice.uniform))  # type: ignore[arg-type]
        found = held.ask(choice)
        assert found.token == distribution.ids[index]
        assert found.log_p == pytest.approx(distribution.log_p[index], abs=1e-5)
        assert found.log_z == pytest.approx(distribution.log_z, abs=1e-5)
        told = held.ask(score)
        assert (told.token, told.log_p, told.is_finite) == (score.token, 0.0, True)
        assert told.log_z == pytest.approx(float(row[score.token]) - log_mass(row), abs=1e-5)
    assert residence.launches == 1


def test_each_row_is_copied_once_and_is_the_same_array() -> None:
    residence = Residence()
    numbers = logits(3)
    held = TorchLogits(residence, numbers)
    assert isinstance(held, ResidentLogits)
    assert held.host(1) is held.host(1)
    np.testing.assert_array_equal(held.host(1), numbers[1].numpy())
    assert held.host(1).dtype == np.float32
    assert residence.copied_rows == 1
    assert residence.launches == 0


def test_rows_in_another_order() -> None:
    """A row that was not run is NaN on the host; the others are asked and copied as before."""
    numbers = logits(4)
    held = TorchLogits(Residence(), numbers).arranged([3, -1, 0]).arranged([2, 0, 1])
    assert held.shape == (3, SIZE)
    assert [held.was_run(row) for row in range(3)] == [True, True, False]
    np.testing.assert_array_equal(held.host(0), numbers[0].numpy())
    np.testing.assert_array_equal(held.host(1), numbers[3].numpy())
    assert np.isnan(held.host(2)).all()
    assert held.ask(SampleQuery(1, words(range(SIZE)), GREEDY)).token == int(numbers[3].argmax())
    ids, values = held.top([1, 0], 5)
    for row, place in enumerate((3, 0)):
        expected = numbers[place].topk(5)
        np.testing.assert_array_equal(ids[row], expected.indices.numpy())
        np.testing.assert_array_equal(values[row], expected.values.numpy())
    assert held.top([0], 1000)[0].shape == (1, SIZE)


def test_rows_without_a_token() -> None:
    """Nothing allowed, nothing possible, and no distribution are distinguished, without NaN among the numbers."""
    numbers = logits(4)
    numbers[1, 5:9] = -torch.inf
    numbers[2, 300] = torch.nan
    numbers[3, 2] = torch.inf
    held = TorchLogits(Residence(), numbers)
    for shape in (GREEDY, SamplingParams()):
        assert held.ask(SampleQuery(0, words([]), shape)) == (-1, -np.inf, -np.inf, True)
        assert held.ask(SampleQuery(1, words(range(5, 9)), shape)) == (-1, -np.inf, -np.inf, True)
        assert held.ask(SampleQuery(1, words(range(5, 10)), shape)).token == 9
        for row in (2, 3):
            answer = held.ask(SampleQuery(row, words([7, 8]), shape))
            assert (answer.token, answer.is_finite) == (-1, False)
    assert held.ask(ScoreQuery(1, 6)).log_z == -np.inf
    assert not held.ask(ScoreQuery(2, 1)).is_finite


def test_a_mask_is_sent_once() -> None:
    """This holds for every caller, and for every pass."""
    residence = Residence()
    TorchLogits(residence, logits(2)).ask(SampleQuery(0, words(range(0, SIZE, 2)), GREEDY))
    pool = residence._pool
    assert pool is not None
    sent = pool.uploaded_bytes
    TorchLogits(residence, logits(2, seed=1)).ask(SampleQuery(1, words(range(0, SIZE, 2)), SamplingParams(), 0.5))
    assert pool.uploaded_bytes == sent > 0
    TorchLogits(residence, logits(2, seed=1)).ask(SampleQuery(1, words(range(1, SIZE, 2)), GREEDY))
    assert pool.uploaded_bytes > sent


def test_more_masks_than_a_device_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    from structgen.models import torch_logits as resident_logits

    monkeypatch.setattr(resident_logits, "_DENSE_ROWS", 2)
    monkeypatch.setattr(resident_logits, "_SPARSE_ROWS", 1)
    numbers = logits(1)
    held = TorchLogits(Residence(), numbers)
    for first in range(0, 60, 3):
        expected = first + int(numbers[0, first : first + 9].argmax())
        assert held.ask(SampleQuery(0, words(range(first, first + 9)), GREEDY)).token == expected


def test_threads_share_a_residence() -> None:
    residence = Residence()
    numbers = logits(1)
    found: dict[int, list[int]] = {}

    def ask(number: int) -> None:
        held = TorchLogits(residence, numbers)
        found[number] = [
            held.ask(SampleQuery(0, words(range(first, first + 40)), GREEDY)).token for first in range(0, 250, 5)
        ]

    threads = [Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [first + int(numbers[0, first : first + 40].argmax()) for first in range(0, 250, 5)]
    assert all(found[number] == expected for number in range(4))
    assert residence.launches == 200


@pytest.mark.parametrize(
    ("device", "wanted", "expected"),
    [("cpu", None, False), ("cpu", True, True), ("cuda:1", None, True), ("cuda", False, False), ("mps", None, False)],
)
def test_where_logits_stay(device: str, wanted: bool | None, expected: bool) -> None:
    assert is_resident_on(torch.device(device), requested=wanted) is expected
