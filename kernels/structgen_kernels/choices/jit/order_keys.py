"""Integer keys in the order of floating-point numbers, and a search over keys."""

import triton
import triton.language as tl


@triton.jit
def order_key(value, SHIFT: tl.constexpr):
    """Return int32 keys in the order of float32 values; zeros of both signs have the same key.

    ``SHIFT`` is the number of low bits that are always zero: 0 for float32, 13 for float16, 16 for bfloat16.
    """
    bits = (value + 0.0).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT


@triton.jit
def key_value(key, SHIFT: tl.constexpr):
    """Return the float32 value of a key."""
    wide = (key << SHIFT) | tl.where(key < 0, (1 << SHIFT) - 1, 0)
    return (wide ^ ((wide >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def pivots_between(low, high, PIVOTS: tl.constexpr):
    """Return ascending keys, int32 [PIVOTS], above ``low`` and up to ``high``, both int64."""
    steps = tl.arange(0, PIVOTS) + 1
    return (low + (steps * (high - low) + PIVOTS - 1) // PIVOTS).to(tl.int32)


@triton.jit
def narrowed(low, high, passed, PIVOTS: tl.constexpr):
    """Return the interval of the largest passing key, given that ``low`` and the first ``passed`` pivots pass."""
    span = high - low
    below = low + (passed * span + PIVOTS - 1) // PIVOTS
    above = low + ((passed + 1) * span + PIVOTS - 1) // PIVOTS - 1
    return below, tl.where(passed == PIVOTS, high, above)


@triton.jit
def from_above(keys, weights, pivots):
    """Return, for each pivot [P], how many keys [N] are at least the pivot, int32, and the sum of their weights."""
    is_above = keys[:, None] >= pivots[None, :]  # [N, P]
    return tl.sum(is_above.to(tl.int32), 0), tl.sum(tl.where(is_above, weights[:, None], 0.0), 0)
