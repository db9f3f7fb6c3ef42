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
def _pivot(low, high, at: tl.constexpr, PIVOTS: tl.constexpr):
    """Return a key, int32, the ``at``-th of ascending ones above ``low`` and up to ``high``, both int64."""
    return (low + ((at + 1) * (high - low) + PIVOTS - 1) // PIVOTS).to(tl.int32)


@triton.jit
def narrowed(low, high, passed, PIVOTS: tl.constexpr):
    """Return the interval of the largest passing key, given that ``low`` and the first ``passed`` pivots pass."""
    span = high - low
    below = low + (passed * span + PIVOTS - 1) // PIVOTS
    above = low + ((passed + 1) * span + PIVOTS - 1) // PIVOTS - 1
    return below, tl.where(passed == PIVOTS, high, above)


@triton.jit
def _count(keys, low, high, at: tl.constexpr, PIVOTS: tl.constexpr):
    """Return how many of each 8 keys are at least a pivot."""
    return tl.sum((keys >= _pivot(low, high, at, PIVOTS)).to(tl.int32), 1)


@triton.jit
def _mass(keys, weights, low, high, at: tl.constexpr, PIVOTS: tl.constexpr):
    """Return the weight of those keys."""
    return tl.sum(tl.where(keys >= _pivot(low, high, at, PIVOTS), weights, 0.0), 1)


@triton.jit
def from_above(keys, weights, low, high, N: tl.constexpr):
    """Return how many keys [N] are at least each of 4 pivots, int32 [N // 8, 2, 2] in their order, and their weights.

    They are the numbers of each 8 keys, which one thread holds: it adds them up over tiles, and threads exchange them
    once at the end.  Pivots are scalars, since a tensor of keys and pivots would be laid out over threads in each tile.
    """
    keys = tl.reshape(keys, [N // 8, 8])
    weights = tl.reshape(weights, [N // 8, 8])
    counts = tl.join(
        tl.join(_count(keys, low, high, 0, 4), _count(keys, low, high, 2, 4)),
        tl.join(_count(keys, low, high, 1, 4), _count(keys, low, high, 3, 4)),
    )
    sums = tl.join(
        tl.join(_mass(keys, weights, low, high, 0, 4), _mass(keys, weights, low, high, 2, 4)),
        tl.join(_mass(keys, weights, low, high, 1, 4), _mass(keys, weights, low, high, 3, 4)),
    )
    return counts, sums
