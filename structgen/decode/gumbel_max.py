"""Sampling with fixed noise: a token is a function of the law and of one key.

Each token has its own random number, an exponential one ``E_i``, and the token with the largest ``p_i / E_i`` is taken,
which is that with the largest ``log p_i + g_i`` for the Gumbel number ``g_i = -log E_i``.  It is token ``i`` with
probability ``p_i``.  The numbers are a function of the key and of what stands for the token, made by a counter-based
generator, so they can be had anywhere and in any order.  Laws that are near each other give the same token with high
probability, which is of use to those who guess: see ``structgen.decode.speculative.verification.fixed_noise``.

Sources: E. J. Gumbel, "Statistical Theory of Extreme Values" (1954); C. J. Maddison, D. Tarlow, T. Minka, "A* Sampling"
(NeurIPS 2014, arXiv 1411.0030); the generator is SplitMix64 (G. L. Steele, D. Lea, C. H. Flood, "Fast Splittable
Pseudorandom Number Generators", OOPSLA 2014), whose state can be set to any position.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.sampler import Multinomial

__all__ = ["GumbelMax", "choose_by_noise", "exponential_noise", "gumbel_noise", "noise_key", "peek_noise_keys"]

_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_MIXES: Final = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT: Final = np.uint64(31)


@final
@dataclass(frozen=True, slots=True)
class GumbelMax:
    """A token drawn from a shaped law, by fixed noise.

    It takes one number from the generator for each token that it chooses, the key; nothing else is random.  So whoever
    has a copy of the generator knows the noise of all choices to come (``peek_noise_keys``), and can guess with it.

    The noise belongs to the index in the law that is chosen from: to the rank of a token among the allowed ones.  A
    guess has the same noise if it is made under the same mask.

    Attributes:
        shape: makes the law that is drawn from: temperature and truncation.
    """

    shape: Multinomial = field(default_factory=Multinomial)

    target: ClassVar[str] = Multinomial.target

    @property
    def lossless(self) -> bool:
        """Whether nothing is shaped."""
        return self.shape.lossless

    def draw(self, log_p: NDArray[np.float64], generator: np.random.Generator, /) -> int:
        """See ``Sampler.draw``."""
        return self.choose(log_p, noise_key(generator))

    def choose(self, log_p: NDArray[np.float64], key: int) -> int:
        """What ``draw`` returns where the generator gives this key."""
        return choose_by_noise(self.shape.shaped(log_p), key)


def noise_key(generator: np.random.Generator) -> int:
    """The key of one choice: 64 bits, the next number of the generator."""
    return int(generator.integers(0, 2**64 - 1, dtype=np.uint64, endpoint=True))


def peek_noise_keys(generator: np.random.Generator, count: int) -> list[int]:
    """The keys of the next ``count`` choices; the generator stays where it is."""
    twin = copy.deepcopy(generator)
    return [noise_key(twin) for _ in range(count)]


def choose_by_noise(weights: NDArray[np.float64], key: int, ids: NDArray[np.int64] | None = None) -> int:
    """Return an index with a probability, over all keys, in proportion to its weight.

    Args:
        weights: none negative, not all zero, ``[n]``.
        key: of the noise.
        ids: what the noise of each index belongs to, ``[n]``; None is the index itself.

    Complexity: O(n), of which only positive weights need noise.
    """
    if np.count_nonzero(weights) < len(weights):
        positive = np.flatnonzero(weights)
        ids = positive if ids is None else ids[positive]
        return int(positive[_winner(weights[positive], key, ids)])
    return _winner(weights, key, ids)


def exponential_noise(key: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Independent standard exponential numbers, one for each id, in (1e-16, 37), ``[n]``."""
    # Place id + 1 of the sequence that begins at the key; uint64 arithmetic of arrays wraps around silently.
    words = ids.astype(np.uint64)
    words += np.uint64(1)
    words *= _GAMMA
    words += np.uint64(key)
    shifted = np.empty_like(words)
    for shift, factor in _MIXES:
        words ^= np.right_shift(words, shift, out=shifted)
        words *= factor
    words ^= np.right_shift(words, _LAST_SHIFT, out=shifted)
    words >>= np.uint64(12)
    uniform = words.astype(np.float64)  # 52 bits and a half: in the open unit interval, without rounding
    uniform += 0.5
    uniform *= 2.0**-52
    np.log(uniform, out=uniform)
    return np.negative(uniform, out=uniform)


def gumbel_noise(key: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Independent standard Gumbel numbers, one for each id, ``[n]``."""
    noise = exponential_noise(key, ids)
    np.log(noise, out=noise)
    return np.negative(noise, out=noise)


def _winner(weights: NDArray[np.float64], key: int, ids: NDArray[np.int64] | None) -> int:
    noise = exponential_noise(key, np.arange(len(weights)) if ids is None else ids)
    return int(np.divide(weights, noise, out=noise).argmax())
