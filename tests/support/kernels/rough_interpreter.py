"""Variants of Triton's interpreter with the arithmetic and the order of a GPU, for machines without a GPU.

``rough_interpreter`` computes float32 exponentials, logarithms and quotients with the errors that PTX documents,
flushes exponentials below the smallest normal number to 0, sums in the order of butterfly reductions and parallel
scans, and runs the programs of a grid from the last to the first.  The guarantees of kernels must also hold then.

``maxima_with_nan`` selects whether maxima and minima of NaN and a number are NaN, as in numpy, or the number, as in
PTX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np

__all__ = ["maxima_with_nan", "rough_interpreter"]

_SMALLEST = np.float32(2.0**-126)


def _inexact(values: Any, ulps: int) -> Any:
    """Return float32 values with deterministic errors of up to ``ulps`` units in the last place."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    off = (bits * np.uint32(2_654_435_761) >> np.uint32(16)) % np.uint32(2 * ulps + 1)
    moved = bits.astype(np.int64) + off.astype(np.int64) - ulps
    known = np.isfinite(values) & (np.abs(values) > 2 * _SMALLEST)
    return np.where(known, moved, bits).astype(np.uint32).view(np.float32)


def _exp(values: Any) -> Any:
    if values.dtype != np.float32:
        return np.exp(values)
    powers = np.exp2((values * np.float32(np.log2(np.e))).astype(np.float64)).astype(np.float32)
    powers = np.where(values == 0, np.float32(1), _inexact(powers, 2))
    return np.where(powers < _SMALLEST, np.float32(0), powers).astype(np.float32)


def _log(values: Any) -> Any:
    made = np.log(values)
    return np.where(values == 1, np.float32(0), _inexact(made, 1)) if values.dtype == np.float32 else made


def _quotient(left: Any, right: Any) -> Any:
    made = np.divide(left, right)
    if made.dtype != np.float32:
        return made
    is_power = np.abs(np.frexp(right)[0]) == 0.5  # its inverse is exact
    return np.where(is_power, made, _inexact(made, 2)).astype(np.float32)


def _sum(reduction: Any, operand: Any) -> Any:
    values = operand.handle.data
    axis = reduction.axis
    if values.dtype.kind == "f":
        values = values.reshape(-1) if axis is None else np.moveaxis(values, axis, 0)
        while len(values) > 1:
            values = values[: len(values) // 2] + values[len(values) // 2 :]
        made = np.expand_dims(values[0], axis or 0) if reduction.keep_dims else values[0]
    else:
        made = np.sum(values, axis=axis, keepdims=reduction.keep_dims)
    return reduction.to_tensor(made, operand.dtype)


def _running_sums(scan: Any, operand: Any) -> Any:
    values = np.moveaxis(operand.handle.data.copy(), scan.axis, 0)
    step = 1
    while step < len(values):
        values = np.concatenate([values[:step], values[step:] + values[:-step]])
        step *= 2
    return [scan.to_tensor(np.ascontiguousarray(np.moveaxis(values, 0, scan.axis)), operand.dtype)]


@contextmanager
def rough_interpreter() -> Iterator[None]:
    """Run kernels with the arithmetic and the order of a GPU: see the module."""
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    place: Callable[..., None] = builder.set_grid_idx

    def from_the_last(self: Any, *index: int) -> None:
        place(self, *(count - 1 - each for count, each in zip(self.grid_dim, index, strict=True)))

    def made(operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(_: Any, *operands: Any) -> Any:
            with np.errstate(all="ignore"):
                data = operation(*(each.data for each in operands))
            return interpreter.TensorHandle(data, operands[0].dtype.scalar)

        return call

    with (
        mock.patch.multiple(builder, create_exp=made(_exp), create_log=made(_log), create_fdiv=made(_quotient)),
        mock.patch.object(builder, "set_grid_idx", from_the_last),
        mock.patch.object(interpreter.ReduceOps, "sum", _sum),
        mock.patch.object(interpreter.ScanOps, "cumsum", _running_sums),
    ):
        yield


@contextmanager
def maxima_with_nan(*, spread: bool) -> Iterator[None]:
    """Run kernels with maxima and minima that are NaN if any operand is NaN, or only if all are."""
    from triton.runtime import interpreter

    largest, smallest = (np.maximum, np.minimum) if spread else (np.fmax, np.fmin)
    pairwise = {"create_maxnumf": largest, "create_minnumf": smallest}
    reduced = {"max": largest, "nanmax": largest, "min": smallest, "nanmin": smallest}
    original: Callable[..., Any] = interpreter.ReduceOps.min_max

    def min_max(self: Any, operand: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        if idx_reduce_op is None:
            val_reduce_op = reduced[val_reduce_op.__name__].reduce
        return original(self, operand, val_reduce_op, idx_reduce_op)

    with ExitStack() as stack:
        for name, operation in pairwise.items():

            def call(self: Any, one: Any, other: Any, operation: Any = operation) -> Any:
                return self.binary_op(one, other, operation)

            stack.enter_context(mock.patch.object(interpreter.InterpreterBuilder, name, call))
        stack.enter_context(mock.patch.object(interpreter.ReduceOps, "min_max", min_max))
        yield
