"""Random numbers for a row of logits, the same as those of ``structgen_kernels.philox``."""

import triton
import triton.language as tl


@triton.jit
def random_words(seed, offset, index, STREAM: tl.constexpr):
    """Return four uint32 words for each index [N]; ``seed`` and ``offset`` are int64 scalars."""
    c0 = index.to(tl.uint32)
    c1 = c0 * 0 + STREAM
    c2 = c0 * 0 + (offset & 0xFFFFFFFF).to(tl.uint32)
    c3 = c0 * 0 + ((offset >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return tl.philox(seed, c0, c1, c2, c3)


@triton.jit
def exponential(high, low):
    """Return standard exponential variates, float32 [N], from 64 random bits each, in two uint32 [N]."""
    uniform = high.to(tl.float32) * 2.3283064365386963e-10 + (low.to(tl.float32) + 0.5) * 5.421010862427522e-20
    u = uniform
    series = u * (1 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5 + u / 6)))))
    rest_high, rest_low = high ^ 0xFFFFFFFF, low ^ 0xFFFFFFFF  # the complement
    rest = rest_high.to(tl.float32) * 2.3283064365386963e-10 + (rest_low.to(tl.float32) + 0.5) * 5.421010862427522e-20
    return tl.where(u < 0.0625, series, -tl.log(rest))
