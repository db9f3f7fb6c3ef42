"""Small kernels that return the results of device functions; import this module only in ``tests/kernels``."""

import triton
import triton.language as tl
from structgen_kernels.jit.noise import exponential, random_words

__all__ = ["noise_probe"]


@triton.jit
def noise_probe(seeds_ptr, words_ptr, noise_ptr, STREAM: tl.constexpr, N: tl.constexpr):
    """Store four words [4, N] and the exponential variates [N] of a seed and an offset."""
    place = tl.arange(0, N)
    a, b, c, d = random_words(tl.load(seeds_ptr), tl.load(seeds_ptr + 1), place * 40_503, STREAM)
    tl.store(words_ptr + place, a)
    tl.store(words_ptr + N + place, b)
    tl.store(words_ptr + 2 * N + place, c)
    tl.store(words_ptr + 3 * N + place, d)
    tl.store(noise_ptr + place, exponential(a, b))
