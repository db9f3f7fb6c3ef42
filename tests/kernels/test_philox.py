"""Random numbers: published vectors, the same bits from the kernels, and their distribution."""

from __future__ import annotations

import pytest
import torch
from structgen_kernels.philox import exponential, philox, random_words

# From the known answers of Random123 (Salmon et al. 2011), philox4x32-10.
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), VECTORS)
def test_published_vectors(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    words = philox(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
    assert tuple(int(word) for word in words) == expected


@pytest.mark.parametrize(("seed", "offset"), [(0, 0), (1, 2**40 + 3), (-7, -1), (2**63 - 1, 2**32 - 1)])
def test_kernels_draw_the_same_bits(seed: int, offset: int) -> None:
    from kernel_probes import noise_probe

    made, sampled = torch.zeros(4, 64, dtype=torch.uint32), torch.zeros(64)
    noise_probe[(1,)](torch.tensor([seed, offset]), made, sampled, STREAM=3, N=64)
    words = random_words(torch.tensor(seed), torch.tensor(offset), 3, torch.arange(64) * 40_503)
    assert [word.tolist() for word in words] == made.tolist()
    torch.testing.assert_close(sampled, exponential(words[0], words[1]), rtol=3e-6, atol=0)


def test_exponential_numbers_have_their_distribution_and_never_vanish() -> None:
    high, low, _, _ = random_words(torch.tensor(5), torch.tensor(9), 0, torch.arange(200_000))
    numbers = exponential(high, low).to(torch.float64).sort().values
    # Kolmogorov-Smirnov: above 2.66 / sqrt(n) with a probability of 1.4e-6.
    expected = torch.arange(1, len(numbers) + 1) / len(numbers)
    assert (1 - torch.exp(-numbers) - expected).abs().max() < 2.66 / len(numbers) ** 0.5
    # Small numbers have the resolution of float32, not that of a uniform number.
    smallest = exponential(torch.zeros(4, dtype=torch.int64), torch.tensor([0, 1, 1000, 2**32 - 1]))
    torch.testing.assert_close(
        smallest.to(torch.float64), torch.tensor([0.5, 1.5, 1000.5, 2**32 - 0.5], dtype=torch.float64) / 2.0**64
    )
    largest = exponential(torch.tensor([2**32 - 1]), torch.tensor([2**32 - 1]))
    assert 44 < float(largest) < 46


def test_exponential_numbers_are_accurate_everywhere() -> None:
    high = torch.linspace(0, 2**32 - 1, 5001, dtype=torch.float64).to(torch.int64)
    low = torch.full_like(high, 12345)
    uniform = high.to(torch.float64) / 2**32 + (low.to(torch.float64) + 0.5) / 2.0**64
    rest = (2**32 - 1 - high).to(torch.float64) / 2**32 + (2**32 - 1 - low + 0.5).to(torch.float64) / 2.0**64
    exact = torch.where(uniform < 0.5, -torch.log1p(-uniform), -torch.log(rest))
    torch.testing.assert_close(exponential(high, low).to(torch.float64), exact, rtol=2e-6, atol=0)
