"""Samplers of tokens: how a token is chosen from the next-token distribution.

A sampler is a value; the random numbers are passed in.  ``GumbelMax`` samples with fixed noise: the token is a function
of the distribution and one key.  ``at_temperature`` sets the temperature for parts of a grammar that have one of their
own (``Tempered``).

Sources: E. J. Gumbel, "Statistical Theory of Extreme Values" (1954); C. J. Maddison, D. Tarlow, T. Minka, "A* Sampling"
(NeurIPS 2014, arXiv 1411.0030); the generator is SplitMix64 (G. L. Steele, D. Lea, C. H. Flood, "Fast Splittable
Pseudorandom Number Generators", OOPSLA 2014), whose state can be set to any position.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import ClassVar, Final, Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from structgen.errors import ArgumentError, found

__all__ = [
    "Greedy",
    "GumbelMax",
    "Multinomial",
    "Sampler",
    "at_temperature",
    "check_seed",
    "check_tempering",
    "choose_by_noise",
    "exponential_noise",
    "noise_key",
    "wrong_sampler",
]

BLOCK: Final = 512
"""Number of weights per block sum."""


@runtime_checkable
class Sampler(Protocol):
    """Chooses one of the allowed tokens."""

    @property
    def lossless(self) -> bool:
        """Whether tokens are sampled from the distribution as it is, without temperature or truncation."""

    def draw(self, log_p: NDArray[np.float64], generator: np.random.Generator, /) -> int:
        """Return an index into ``log_p``, normalised log-probabilities ``[n]`` in ascending order of token id.

        Called only if there are at least two choices; must leave ``log_p`` as it is.
        """


@final
@dataclass(frozen=True, slots=True)
class Greedy:
    """Takes the most probable token, of equally probable ones that with the lowest id.  Uses no random numbers."""

    lossless: ClassVar[bool] = False
    target: ClassVar[str] = "the most probable token of each step"

    def draw(self, log_p: NDArray[np.float64], generator: np.random.Generator, /) -> int:
        """See ``Sampler.draw``."""
        return int(log_p.argmax())


@final
@dataclass(frozen=True, slots=True)
class Multinomial:
    """Samples a token with its probability.

    Each token takes one uniform number, and is found by the inverse distribution function in the order of token ids, in
    float64: the same seed gives the same tokens on every machine, unless a uniform number is within rounding error
    (about 1e-13) of a boundary.

    Attributes:
        temperature: divisor of the logits.
        top_k: sample only from the ``top_k`` most probable tokens (ties by lower id); None is all.
        top_p: sample only from the smallest set of most probable tokens with at least this total probability; None is
            all.
        min_p: sample only from tokens with at least ``min_p`` times the probability of the most probable one; None is
            all.

    Raises:
        ValueError: a value is out of range.
        ArgumentError: a value is no number.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    target: ClassVar[str] = "locally constrained decoding, with this temperature and truncation at each step"

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p"):
            value = getattr(self, name)
            if not (isinstance(value, Real) or (value is None and name != "temperature")):
                raise ArgumentError(
                    "Multinomial",
                    f"{name} must be a number",
                    evidence=found(value),
                    remedy=f"write for instance {name}=0.7",
                )
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(
                f"Multinomial: temperature must be positive and finite; found {self.temperature!r}; "
                "use Greedy() for the most probable token"
            )
        if self.top_k is not None and (not isinstance(self.top_k, int) or self.top_k < 1):
            raise ValueError(f"Multinomial: top_k must be an integer of at least 1; found {self.top_k!r}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"Multinomial: top_p must be in (0, 1]; found {self.top_p!r}")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise ValueError(f"Multinomial: min_p must be in [0, 1]; found {self.min_p!r}")

    @property
    def lossless(self) -> bool:
        """Whether temperature is 1 and nothing is truncated."""
        return self.temperature == 1 and self.top_k is None and self.top_p in (None, 1) and self.min_p in (None, 0)

    def shaped(self, log_p: NDArray[np.float64]) -> NDArray[np.float64]:
        """Unnormalised weights after temperature and truncation, the largest 1, float64 ``[n]``."""
        weights: NDArray[np.float64] = log_p - log_p.max()
        if self.temperature != 1:
            weights /= self.temperature
        np.exp(weights, out=weights)
        if self.top_k is not None and self.top_k < len(weights):
            weights = _keep_top_k(weights, self.top_k)
        if self.top_p is not None and self.top_p < 1:
            weights = _keep_top_p(weights, self.top_p)
        if self.min_p is not None:
            weights[weights < self.min_p] = 0  # the largest weight is 1
        return weights

    def draw(self, log_p: NDArray[np.float64], generator: np.random.Generator, /) -> int:
        """See ``Sampler.draw``."""
        return inverse_cdf(self.shaped(log_p), generator.random())


def inverse_cdf(weights: NDArray[np.float64], uniform: float) -> int:
    """The smallest index at which the running sum of ``weights`` exceeds ``uniform`` times their sum.

    Running sums are computed over blocks, and inside one block only.  Never returns an index of weight zero.
    """
    return index_at(weights, block_sums(weights), uniform)


def block_sums(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sums of ``BLOCK`` weights each."""
    sums: NDArray[np.float64] = np.add.reduceat(weights, np.arange(0, len(weights), BLOCK))
    return sums


def index_at(weights: NDArray[np.float64], blocks: NDArray[np.float64], uniform: float) -> int:
    """``inverse_cdf`` with ``block_sums(weights)`` given."""
    sums = np.cumsum(blocks)
    target = uniform * sums[-1]
    block = int(np.searchsorted(sums, target, side="right"))
    if block == len(sums):  # uniform times the sum was rounded up to the sum
        return int(np.flatnonzero(weights)[-1])
    before = sums[block - 1] if block else 0.0
    start = block * BLOCK
    inside = before + np.cumsum(weights[start : start + BLOCK])
    index = int(np.searchsorted(inside, target, side="right"))
    if index == len(inside):  # the two sums of the block differ in the last bit
        return start + int(np.flatnonzero(weights[start : start + BLOCK])[-1])
    return start + index


def _keep_top_k(weights: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    threshold = np.partition(weights, len(weights) - k)[len(weights) - k]
    truncated = np.where(weights > threshold, weights, 0)
    equal = np.flatnonzero(weights == threshold)[: k - np.count_nonzero(truncated)]
    truncated[equal] = threshold
    return truncated


def _keep_top_p(weights: NDArray[np.float64], p: float) -> NDArray[np.float64]:
    total = weights.sum()
    # Tokens below this share have less than 1 - p in total, so the nucleus is among the others.
    candidates = np.flatnonzero(weights >= (1 - p) * total / len(weights))
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    count = int(np.searchsorted(np.cumsum(weights[order]), p * total, side="left")) + 1
    truncated = np.zeros_like(weights)
    truncated[order[:count]] = weights[order[:count]]
    return truncated


_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_MIXES: Final = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST_SHIFT: Final = np.uint64(31)


@final
@dataclass(frozen=True, slots=True)
class GumbelMax:
    """Samples a token with fixed Gumbel noise, after temperature and truncation.

    Each choice takes one number from the generator, the key of its noise.  A copy of the generator therefore gives the
    noise of all later choices, and a drafter can use it.

    The noise belongs to the index of a token among the allowed ones.  A draft under the same mask has the same noise.

    Attributes:
        shape: temperature and truncation.
    """

    shape: Multinomial = field(default_factory=Multinomial)

    target: ClassVar[str] = Multinomial.target

    @property
    def lossless(self) -> bool:
        """See ``Multinomial.lossless``."""
        return self.shape.lossless

    def draw(self, log_p: NDArray[np.float64], generator: np.random.Generator, /) -> int:
        """See ``Sampler.draw``."""
        return self.choose(log_p, noise_key(generator))

    def choose(self, log_p: NDArray[np.float64], key: int) -> int:
        """The result of ``draw`` for this key."""
        return choose_by_noise(self.shape.shaped(log_p), key)


def noise_key(generator: np.random.Generator) -> int:
    """Take the key of one choice, 64 bits, from the generator."""
    return int(generator.integers(0, 2**64 - 1, dtype=np.uint64, endpoint=True))


def choose_by_noise(weights: NDArray[np.float64], key: int, ids: NDArray[np.int64] | None = None) -> int:
    """Return an index with a probability, over all keys, in proportion to its weight.

    Args:
        weights: none negative, not all zero, ``[n]``.
        key: the key of the noise.
        ids: the id by which the noise of each index is made, ``[n]``; None is the index itself.

    Complexity: O(n); noise is made for positive weights only.
    """
    if np.count_nonzero(weights) < len(weights):
        positive = np.flatnonzero(weights)
        ids = positive if ids is None else ids[positive]
        return int(positive[_winner(weights[positive], key, ids)])
    return _winner(weights, key, ids)


def exponential_noise(key: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Independent standard exponential numbers, one for each id, in (1e-16, 37), ``[n]``."""
    # Number id + 1 of the sequence that starts at the key; uint64 arithmetic of arrays wraps around silently.
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


def _winner(weights: NDArray[np.float64], key: int, ids: NDArray[np.int64] | None) -> int:
    noise = exponential_noise(key, np.arange(len(weights)) if ids is None else ids)
    return int(np.divide(weights, noise, out=noise).argmax())


_GREEDY = Greedy()


def at_temperature(sampler: Sampler, temperature: float) -> Sampler:
    """Return ``sampler`` with another temperature; 0 is ``Greedy()``.

    Truncation (top-k, top-p, min-p) stays as it is.  ``Greedy`` has temperature 0: a part of the grammar with a higher
    temperature is sampled even with ``Greedy``.

    Raises:
        ValueError: the sampler has no temperature; see ``check_tempering``.
    """
    if temperature == 0:
        return _GREEDY
    match sampler:
        case Greedy():
            return Multinomial(temperature)
        case Multinomial():
            return replace(sampler, temperature=temperature)
        case GumbelMax():
            return GumbelMax(replace(sampler.shape, temperature=temperature))
    raise ValueError(
        f"sampler={sampler!r:.60} has no temperature that a part of the grammar could set; "
        "take Greedy(), Multinomial() or GumbelMax(), or leave temperatures out of the grammar"
    )


def check_tempering(sampler: object) -> None:
    """Check that a sampler can use the temperatures of a grammar.

    Raises:
        ValueError: the sampler has no temperature, or writes whole outputs.
    """
    if isinstance(sampler, (Greedy, Multinomial, GumbelMax)):
        return
    raise ValueError(
        f"sampler={sampler!r:.60} cannot use the temperatures of parts of the grammar; "
        "take Greedy(), Multinomial() or GumbelMax(), or leave temperatures out of the grammar"
    )


def wrong_sampler(call: str, sampler: object, *, expected: str, example: str) -> ArgumentError:
    """Make the error for a value that is no sampler; ``example`` is one."""
    if isinstance(sampler, type):
        remedy = f"pass an object: {sampler.__name__}()"
    elif isinstance(sampler, str):
        remedy = f"names are for the command line; pass an object, such as {example}"
    else:
        remedy = f"pass {example}, or another one of sg.samplers"
    return ArgumentError(call, f"expected {expected}", evidence=found(sampler), remedy=remedy)


def check_seed(seed: object) -> None:
    """Check a seed.

    Raises:
        ArgumentError: it is not a whole number.
        ValueError: it is negative.
    """
    if not hasattr(seed, "__index__"):
        raise ArgumentError("seed", "expected a whole number", evidence=found(seed), remedy="pass seed=0")
    if int(seed) < 0:
        raise ValueError(f"seed must be at least 0; found {seed}")
