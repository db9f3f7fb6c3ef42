"""The kernels of ``structgen_kernels.choices.gumbel_order``."""

import triton
import triton.language as tl

from structgen_kernels.jit.noise import exponential, random_words
from structgen_kernels.masks.jit.mask_words import allowed_columns, allowed_words

_STREAM = tl.constexpr(2)  # STREAMS["order"]
_NONE = tl.constexpr(-(2**63))
_LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _pack(key, token):
    """Pack keys [N] and tokens [N] into int64 [N]; earlier tokens of the order have larger numbers."""
    bits = key.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0xFFFFFFFF - token.to(tl.int64))


@triton.jit
def _scaled(
    logits_ptr,
    logits_stride,
    temperature_ptr,
    masks,
    size,
    row,  # int64
    base,  # the first column, a multiple of 32
    N: tl.constexpr,
):
    """Return columns [N] of a row divided by its temperature, minus infinity if not allowed, and which are allowed."""
    column = base + tl.arange(0, N)
    allowed = column < size
    if masks is not None:
        word = base // 32 + tl.arange(0, N // 32)
        words = allowed_words(masks, row, size, word)
        allowed &= allowed_columns(words, N // 32)
    # Logits that are not allowed are read too: under a mask of single columns, each would be a load of its own.
    logit = tl.load(logits_ptr + row * logits_stride + column, mask=column < size, other=float("-inf")).to(tl.float32)
    if temperature_ptr is not None:
        temperature = tl.load(temperature_ptr + row)
        logit = logit / tl.where(temperature > 0, temperature, float("nan"))
    return tl.where(allowed, logit, float("-inf")), allowed


@triton.jit
def _ranks(scaled, seed, offset, base, N: tl.constexpr):
    """Return packed keys and tokens [N]; the smallest int64 for tokens with probability 0."""
    a, b, c, d = random_words(seed, offset, base // 2 + tl.arange(0, N // 2), _STREAM)
    key = scaled - tl.log(exponential(tl.interleave(a, c), tl.interleave(b, d)))
    return tl.where(scaled > float("-inf"), _pack(key, base + tl.arange(0, N)), _NONE)


@triton.jit
def _log(total, shift):
    """Return ``log(exp(shift) * total)``; minus infinity for 0, NaN for NaN."""
    return tl.where(total == 0, float("-inf"), shift + tl.log(tl.where(total == 0, 1.0, total)))


@triton.jit
def first_of_chunks_kernel(
    logits_ptr,  # [rows, columns]
    logits_stride,
    seeds_ptr,  # int64 [rows]
    offsets_ptr,  # int64 [rows]
    temperature_ptr,  # float32 [rows] or None
    masks,  # MaskArgs or None
    size,
    firsts_ptr,  # int64 [rows, chunks]
    masses_ptr,  # float32 [rows, chunks]
    maxima_ptr,  # float32 [rows, chunks]
    chunks,
    last_tokens_ptr,  # int32 [rows, last_count] or None
    last_keys_ptr,  # float32 [rows, last_count] or None
    last_count,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """One program per row and CHUNKS chunks: the first remaining token, the mass and the largest logit of each."""
    row = tl.program_id(0).to(tl.int64)
    base = tl.program_id(1) * (CHUNKS * CHUNK)
    scaled, allowed = _scaled(
        logits_ptr,
        logits_stride,
        temperature_ptr,
        masks,
        size,
        row,
        base,
        CHUNKS * CHUNK,
    )
    rank = _ranks(scaled, tl.load(seeds_ptr + row), tl.load(offsets_ptr + row), base, CHUNKS * CHUNK)
    left = scaled
    if last_tokens_ptr is not None:
        place = row * last_count + last_count - 1
        token = tl.load(last_tokens_ptr + place)
        after = (rank < _pack(tl.load(last_keys_ptr + place), token)) & (token >= 0)
        rank = tl.where(after, rank, _NONE)
        left = tl.where(after, scaled, float("-inf"))
    left = tl.reshape(left, [CHUNKS, CHUNK])
    most = tl.max(left, 1)  # [CHUNKS]
    shift = tl.where(tl.abs(most) < float("inf"), most, 0.0)
    mass = _log(tl.sum(tl.exp(left - shift[:, None]), 1), shift)
    chunk = tl.program_id(1) * CHUNKS + tl.arange(0, CHUNKS)
    inside = chunk < chunks
    place = row * chunks + chunk
    tl.store(firsts_ptr + place, tl.max(tl.reshape(rank, [CHUNKS, CHUNK]), 1), mask=inside)
    tl.store(masses_ptr + place, mass, mask=inside)
    if last_tokens_ptr is None:
        # Only chunks without an allowed column have the maximum minus infinity.
        raised = tl.where(allowed, tl.maximum(scaled, _LOWEST), float("-inf"))
        tl.store(maxima_ptr + place, tl.max(tl.reshape(raised, [CHUNKS, CHUNK]), 1), mask=inside)


@triton.jit
def _log_sum(masses):
    """Return the log-sum-exp of masses [N]; minus infinity for no mass, NaN or plus infinity if a mass is."""
    most = tl.max(masses, 0)
    shift = tl.where(tl.abs(most) < float("inf"), most, 0.0)
    return _log(tl.sum(tl.exp(masses - shift), 0), shift)


@triton.jit
def take_in_order_kernel(
    logits_ptr,  # [rows, columns]
    logits_stride,
    seeds_ptr,
    offsets_ptr,
    temperature_ptr,
    masks,
    size,
    firsts_ptr,  # int64 [rows, chunks]
    masses_ptr,  # float32 [rows, chunks]
    maxima_ptr,  # float32 [rows, chunks]
    chunks,
    last_log_z_ptr,  # float32 [rows] or None
    last_log_top_ptr,
    last_status_ptr,  # int32 [rows] or None
    tokens_ptr,  # int32 [rows, count]
    keys_ptr,  # float32 [rows, count]
    log_p_ptr,
    left_ptr,
    log_z_ptr,  # float32 [rows]
    log_top_ptr,
    status_ptr,  # int32 [rows]
    count,
    CHUNK: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,
):
    """One program per row: takes the first token of all chunks and updates its chunk, ``count`` times."""
    row = tl.program_id(0).to(tl.int64)
    each = tl.arange(0, MAX_CHUNKS)
    inside = each < chunks
    firsts = tl.load(firsts_ptr + row * chunks + each, mask=inside, other=_NONE)
    masses = tl.load(masses_ptr + row * chunks + each, mask=inside, other=float("-inf"))
    total = _log_sum(masses)
    if last_status_ptr is not None:
        log_z = tl.load(last_log_z_ptr + row)
        log_top = tl.load(last_log_top_ptr + row)
        status = tl.load(last_status_ptr + row)
    else:
        most = tl.max(tl.load(maxima_ptr + row * chunks + each, mask=inside, other=float("-inf")), 0)
        is_distribution = (total > float("-inf")) & (total < float("inf"))
        log_z = tl.where(is_distribution, total, float("-inf"))
        log_top = tl.where(is_distribution, most - tl.where(is_distribution, total, 0.0), float("-inf"))
        none = tl.where(most == float("-inf"), 1, 2)  # EMPTY, MASSLESS
        status = tl.where(is_distribution, 0, tl.where(total == float("-inf"), none, 3))  # CHOSEN, NON_FINITE
    tl.store(log_z_ptr + row, log_z)
    tl.store(log_top_ptr + row, log_top)
    tl.store(status_ptr + row, status)
    firsts = tl.where(status == 0, firsts, _NONE)
    seed = tl.load(seeds_ptr + row)
    offset = tl.load(offsets_ptr + row)
    for index in range(count):
        first = tl.max(firsts, 0)
        place = row * count + index
        if first == _NONE:
            tl.store(tokens_ptr + place, -1)
            tl.store(keys_ptr + place, float("-inf"))
            tl.store(log_p_ptr + place, float("-inf"))
            tl.store(left_ptr + place, float("-inf"))
        else:
            token = (0xFFFFFFFF - (first & 0xFFFFFFFF)).to(tl.int32)
            ordered = (first >> 32).to(tl.int32)
            base = token // CHUNK * CHUNK
            scaled, _ = _scaled(
                logits_ptr,
                logits_stride,
                temperature_ptr,
                masks,
                size,
                row,
                base,
                CHUNK,
            )
            rank = _ranks(scaled, seed, offset, base, CHUNK)
            taken = tl.max(tl.where(base + tl.arange(0, CHUNK) == token, scaled, float("-inf")), 0)
            tl.store(tokens_ptr + place, token)
            tl.store(keys_ptr + place, (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True))
            tl.store(log_p_ptr + place, taken - log_z)
            tl.store(left_ptr + place, total - log_z)
            is_left = rank < first
            is_chunk = each == token // CHUNK
            firsts = tl.where(is_chunk, tl.max(tl.where(is_left, rank, _NONE), 0), firsts)
            masses = tl.where(is_chunk, _log_sum(tl.where(is_left, scaled, float("-inf"))), masses)
            total = _log_sum(masses)
