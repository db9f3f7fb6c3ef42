"""Products of packed boolean matrices equal numpy's, at widths that are not multiples of a word."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from graph_capture import recorded_step
from structgen_kernels.charts import boolean_products as module
from structgen_kernels.charts.boolean_products import Pairs, boolean_products, packed_bits, unpacked_bits
from structgen_kernels.errors import KernelArgumentError


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run few programs, since the interpreter runs them one after the other."""
    monkeypatch.setattr(module, "_WORDS", 256)


def matrices(items: int, rows: int, columns: int, share: float, seed: int) -> torch.Tensor:
    """Make random matrices, among them an empty and a full one."""
    made = torch.rand(items, rows, columns, generator=torch.Generator().manual_seed(seed)) < share
    made[0], made[-1] = False, True
    return made


def with_tail(bits: torch.Tensor, columns: int, seed: int) -> torch.Tensor:
    """Pack matrices, with random bits from ``columns`` on."""
    words = packed_bits(bits)
    noise = torch.randint(-(2**31), 2**31, words.shape, generator=torch.Generator().manual_seed(seed))
    last = ~((1 << columns % 32) - 1) if columns % 32 else 0
    words[..., -1] |= (noise[..., -1] & last).to(torch.int32)
    return words


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    ("rows", "inner", "columns"), [(1, 1, 1), (2, 31, 33), (3, 32, 31), (2, 33, 32), (1, 5, 129), (1, 70, 65)]
)
def test_products_are_united_into_what_is_there(rows: int, inner: int, columns: int) -> None:
    left, right = matrices(5, rows, inner, 0.2, 1), matrices(4, inner, columns, 0.1, 2)
    rng = np.random.default_rng(rows + inner)
    triples = [(int(out), int(one), int(two)) for out, one, two in rng.integers(0, (6, 5, 4), (9, 3)) if out != 2]
    held = matrices(6, rows, columns, 0.05, 3)
    out = with_tail(held, columns, 4)

    boolean_products(with_tail(left, inner, 5), packed_bits(right), Pairs.of(triples, 6, "cpu"), out)

    expected = held.numpy().copy()
    for into, one, two in triples:
        expected[into] |= (left[one].numpy().astype(int) @ right[two].numpy().astype(int)) > 0
    assert np.array_equal(unpacked_bits(out, columns).numpy(), expected)
    assert torch.equal(out, packed_bits(torch.tensor(expected)) | with_tail(held, columns, 4))


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("size", [1, 6, pytest.param(34, marks=pytest.mark.nightly)])
def test_of_spans_nothing_before_the_diagonal_is_looked_at(size: int) -> None:
    right = matrices(2, size, size, 0.1, 1).triu()
    left = matrices(2, size, size, 0.1, 2)
    out = packed_bits(torch.zeros(1, size, size, dtype=torch.bool))

    boolean_products(
        packed_bits(left), packed_bits(right), Pairs.of([(0, 0, 1), (0, 1, 0)], 1, "cpu"), out, is_span=True
    )

    spans = left.triu().numpy().astype(int)
    expected = (spans[0] @ right[1].numpy().astype(int) + spans[1] @ right[0].numpy().astype(int)) > 0
    assert np.array_equal(unpacked_bits(out, size).numpy()[0], expected)


@pytest.mark.parametrize("columns", [1, 31, 32, 33, 64, 4097])
def test_bits_are_those_of_the_masks(columns: int) -> None:
    bits = matrices(3, 2, columns, 0.5, columns)
    words = packed_bits(bits)
    by_numpy = np.packbits(bits.numpy(), axis=-1, bitorder="little")
    padded = np.pad(by_numpy, [(0, 0), (0, 0), (0, -by_numpy.shape[-1] % 4)])
    assert np.array_equal(words.numpy(), padded.view(np.int32))
    assert torch.equal(unpacked_bits(words, columns), bits)


def test_a_product_can_be_captured() -> None:
    words, out = torch.zeros(2, 3, 1, dtype=torch.int32), torch.zeros(2, 3, 1, dtype=torch.int32)
    pairs = Pairs.of([(0, 1, 1)], 2, "cpu")
    with recorded_step() as seen:
        boolean_products(words, words, pairs, out)
    assert [launch.kernel for launch in seen] == ["boolean_products_kernel"]


def test_what_does_not_fit_is_refused() -> None:
    one = torch.zeros(2, 3, 1, dtype=torch.int32)
    pairs = Pairs.of([(0, 1, 1)], 2, "cpu")
    good = {"left": one, "right": torch.zeros(2, 3, 1, dtype=torch.int32), "triples": pairs, "out": one.clone()}
    boolean_products(**good)
    for argument, wrong in (
        ("left", one.to(torch.int64)),
        ("left", torch.zeros(2, 3, 2, dtype=torch.int32)),
        ("left", torch.zeros(2, 6, 1, dtype=torch.int32)[:, ::2]),
        ("right", torch.zeros(2, 3, 2, dtype=torch.int32)),
        ("triples", Pairs.of([], 3, "cpu")),
        ("out", one[0]),
    ):
        with pytest.raises(KernelArgumentError) as caught:
            boolean_products(**(good | {argument: wrong}))
        assert caught.value.argument == argument
    with pytest.raises(KernelArgumentError):
        boolean_products(
            torch.zeros(2, 3, 1, dtype=torch.int32),
            torch.zeros(2, 4, 1, dtype=torch.int32),
            pairs,
            one.clone(),
            is_span=True,
        )
    with pytest.raises(KernelArgumentError):
        Pairs.of([(2, 0, 0)], 2, "cpu")


def launches() -> None:
    """Launch the kernels that ``kernel_builds`` compiles for GPUs."""
    for size in (20, 129):
        words = torch.zeros(2, size, (size + 31) // 32, dtype=torch.int32)
        for is_span in (False, True):
            boolean_products(words, words, Pairs.of([(0, 1, 1)], 2, "cpu"), words.clone(), is_span=is_span)
