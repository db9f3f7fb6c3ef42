"""Products with weights of 8 bits, against integers of any size, and models that run on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from structgen.errors import ModelError
from structgen.models import load_model
from structgen.models.llama.model import LlamaModel
from structgen.models.protocol import Extension
from structgen.models.protocol.tree import TokenTree

torch = pytest.importorskip("torch")

from structgen.models.products import FloatMatrices, Int8Linear, Int8Matrices, runs_int8  # noqa: E402

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not runs_int8(CPU), reason="torch has no 8-bit products on this CPU")


def random_matrices(seed: int, *outs: int, width: int = 37) -> list[Any]:
    """Matrices with rows of very different sizes, one row zero."""
    generator = torch.Generator().manual_seed(seed)
    found = [torch.randn(out, width, generator=generator) * torch.rand(out, 1, generator=generator) for out in outs]
    found[0][1] = 0
    return found


def exact(x: Any, weights: list[Any]) -> Any:
    """The same product in Python's integers: the digits of a row, times rounded weights."""
    rows = []
    for row in x.numpy():
        scale = np.float32(max(np.float32(np.abs(row).max()) / np.float32(63), np.float32(1e-30)))
        digits = row / scale
        high = np.rint(digits)
        low = np.rint((digits - high) * np.float32(126))
        outs = []
        for weight in torch.cat(weights).numpy():
            step = np.float32(max(np.float32(np.abs(weight).max()) / np.float32(127), np.float32(1e-30)))
            integers = [int(each) for each in np.rint(weight / step)]
            sums = [sum(int(a) * b for a, b in zip(part, integers, strict=True)) for part in (high, low)]
            outs.append((sums[0] + sums[1] / 126) * float(step) * float(scale))
        rows.append(outs)
    return np.array(rows)


def test_products_are_those_of_the_integers() -> None:
    """Also with rows of zeros, one huge element, and the largest integers throughout, whose sums overflow 16 bits."""
    weights = random_matrices(1, 5, 3)
    x = torch.randn(6, 37, generator=torch.Generator().manual_seed(2)) * torch.tensor([1, 9, 0, 1e-4, 50, 1])[:, None]
    x[1, 4] = 3000.0
    weights[1][2] = 1.0
    x[5] = 1.0
    found = Int8Matrices(weights)(x).numpy()
    expected = exact(x, weights)
    assert np.abs(found - expected).max(axis=1) == pytest.approx(0, abs=3e-6 * np.abs(expected).max())
    assert not found[2].any()


@pytest.mark.parametrize("rows", [1, 2, 17, 64])
def test_native_digits_give_the_same_bits_as_those_of_torch(rows: int) -> None:
    """The rounding of a digit is a step: another bit before it may be another token."""
    generator = torch.Generator().manual_seed(rows)
    product = Int8Matrices(random_matrices(rows, 40, 9, width=576))
    for factor in (1.0, 1e-12, 300.0):
        x = torch.randn(rows, 576, generator=generator) * torch.rand(rows, 1, generator=generator) * factor
        assert torch.equal(product(x), product.reference(x))


def test_they_are_near_to_those_in_floating_point() -> None:
    """The error is that of weights in 8 bits: below 1 % of the result's size."""
    weights = random_matrices(3, 40, 24)
    x = torch.randn(7, 37, generator=torch.Generator().manual_seed(4))
    expected = FloatMatrices(weights, are_mapped=False)(x)
    mapped = FloatMatrices(weights, are_mapped=True)(x)
    torch.testing.assert_close(mapped, expected)
    error = (Int8Matrices(weights)(x) - expected).norm() / expected.norm()
    assert 0 < error < 0.01


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """To the last bit, for every number of rows."""
    product = Int8Matrices(random_matrices(5, 70))
    x = torch.randn(19, 37, generator=torch.Generator().manual_seed(6))
    x[3] *= 1000
    together = product(x)
    for rows in (1, 2, 5, 16):
        assert torch.equal(product(x[3 : 3 + rows]), together[3 : 3 + rows])


def test_the_engine_of_the_process_stays() -> None:
    """Packing sets torch's engine for a moment only."""
    before = torch.backends.quantized.engine
    Int8Matrices(random_matrices(7, 4))
    assert torch.backends.quantized.engine == before


def test_models_in_8_bits_agree(tiny_folder: Path) -> None:
    """Our network and that of transformers round the same weights; splits, trees and batches change no bit."""
    pytest.importorskip("transformers")
    ids = [5, 80, 3, 261, 99, 5, 17, 200, 42, 7, 7, 130]
    model = LlamaModel(tiny_folder, name="tiny", device=CPU, dtype=torch.int8)
    other: Any = load_model(tiny_folder, device="cpu", dtype="int8")
    kinds = {type(module) for module in other.model.modules()}
    assert Int8Linear in kinds
    assert torch.nn.Linear not in kinds
    rows = model.start().extend_all(ids)
    np.testing.assert_allclose(other.start().extend_all(ids), rows, atol=0.02)
    session = model.start()
    split = [session.extend([token]) for token in ids[:-2]]
    tree = session.extend_tree(ids[-2:-1], TokenTree((ids[-1], 9), (-1, -1)))
    assert np.array_equal([*split, tree[0], tree[1]], rows)
    sessions = [model.start(), session.fork(), model.start()]
    parts = [Extension(each, ids[each.length :], all_positions=False) for each in sessions]
    assert all(np.array_equal(row, rows[-1]) for row in model.extend_many(parts))
    assert "torch.int8" in repr(model)


def test_layers_with_a_bias() -> None:
    """The bias is added; the shape of the input stays."""
    linear = torch.nn.Linear(12, 5)
    x = torch.randn(2, 3, 12)
    with torch.inference_mode():
        torch.testing.assert_close(Int8Linear(linear)(x), linear(x), atol=0.02, rtol=0)


def test_other_devices_are_refused(tiny_folder: Path) -> None:
    """Before anything is loaded; the message says what to choose."""
    with pytest.raises(ModelError, match=r"x86 CPUs only.*choose dtype='auto'"):
        LlamaModel(tiny_folder, name="tiny", device=torch.device("meta"), dtype=torch.int8)
