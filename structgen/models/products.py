"""Matrix products of the rows of a pass with weights in floating point or in 8 bits."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final, Protocol, final

import torch
import torch.nn.functional as F  # noqa: N812  # the name that every torch text uses
from structgen_kernels import _native

from structgen.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "FloatMatrices",
    "Int8Linear",
    "Int8Matrices",
    "Matrices",
    "check_int8",
    "matrix_product",
    "runs_int8",
    "use_int8",
]

_ENGINE: Final = "fbgemm"
_DIGIT: Final = 63
"""The largest digit of an input.  Products of 7 bits with 8, two of them summed in 16 bits, overflow on no processor;
digits of 8 bits would where VNNI is missing."""
_SMALLEST: Final = 1e-30


class Matrices(Protocol):
    """One or more matrices ``[out, in]`` that multiply the same rows."""

    def __call__(self, x: torch.Tensor, /) -> torch.Tensor:
        """Return the products of rows ``[rows, in]``, side by side: ``[rows, sum of out]``."""


@final
class FloatMatrices:
    """Matrices in floating point.

    They stay where they are if they are mapped from a file, which processes share; otherwise they are joined.
    """

    def __init__(self, weights: Sequence[torch.Tensor], *, are_mapped: bool) -> None:
        first = weights[0]
        self._product = matrix_product(first.device, first.dtype)
        self._weights = tuple(weights) if are_mapped or len(weights) == 1 else (torch.cat(tuple(weights)),)

    def __call__(self, x: torch.Tensor, /) -> torch.Tensor:
        """See ``Matrices``."""
        if len(self._weights) == 1:
            return self._product(x, self._weights[0])
        return torch.cat([self._product(x, weight) for weight in self._weights], dim=-1)


@final
class Int8Matrices:
    """Matrices as integers of 8 bits, with a scale for each row of a matrix; for CPUs with ``runs_int8``.

    Each row of the input is written in two digits of 7 bits: ``x = scale * (high + low / 126)``, ``scale`` being the
    row's largest element divided by 63.  Both digits are rows of one product of integers, whose sums are exact.  So a
    result depends on nothing but its own row, to the last bit, and is the same on every CPU.  One digit, as in torch's
    dynamic quantisation, would raise the perplexity of the embedded model by 16 %; two raise it by .5 %, and cost
    little because the weights are read once for both.
    """

    def __init__(self, weights: Sequence[torch.Tensor]) -> None:
        whole = torch.cat(tuple(weights)) if len(weights) > 1 else weights[0]
        scales = whole.abs().amax(1).div_(127).clamp_(min=_SMALLEST)
        integers = (whole / scales[:, None]).round_().to(torch.int8)
        zeros = torch.zeros(len(scales), dtype=torch.long)
        before = torch.backends.quantized.engine
        # Of the engines, this one takes the scale of the input as an argument.
        torch.backends.quantized.engine = _ENGINE
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # quantised tensors are deprecated; packed weights are not
                quantised = torch._make_per_channel_quantized_tensor(integers, scales.double(), zeros, 0)
            self._packed = torch.ops.quantized.linear_prepack(quantised, None)
        finally:
            torch.backends.quantized.engine = before

    def __call__(self, x: torch.Tensor, /) -> torch.Tensor:
        """See ``Matrices``."""
        rows, width = x.shape
        digits, scales = torch.empty((2 * rows, width)), torch.empty(rows)
        _native.write_digits(x.detach().numpy(), digits.numpy(), scales.numpy())
        products: torch.Tensor = self._product(digits)
        _native.join_digits(products.numpy(), scales.numpy())
        return products[:rows]

    def reference(self, x: torch.Tensor, /) -> torch.Tensor:
        """As ``__call__``, to the same bits, with torch's operations: the reference of the native code."""
        scale = x.abs().amax(-1, keepdim=True).div_(_DIGIT).clamp_(min=_SMALLEST)
        digits = x / scale
        high = digits.round()
        products = self._product(torch.cat((high, digits.sub_(high).mul_(2 * _DIGIT))))
        rows = len(x)
        return products[:rows].add_(products[rows:], alpha=1 / (2 * _DIGIT)).mul_(scale)

    def _product(self, digits: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default(
            digits, 1.0, _DIGIT + 1, self._packed
        )
        return product


@final
class Int8Linear(torch.nn.Module):
    """A linear layer with its weights as ``Int8Matrices``."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.bias = linear.bias
        self._product = Int8Matrices([linear.weight.detach()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's output for ``x`` ``[..., in]``."""
        product = self._product(x.flatten(0, -2)).view(*x.shape[:-1], -1)
        return product if self.bias is None else product.add_(self.bias)


def use_int8(model: Any) -> None:
    """Replace the linear layers of a float32 model of transformers on a CPU; layers of other kinds stay as they are.

    Raises:
        ModelError: this device does not run 8-bit products.
    """
    check_int8(model.device)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is torch.nn.Linear:
                setattr(module, name, Int8Linear(child))


def runs_int8(device: torch.device) -> bool:
    """Return whether ``Int8Matrices`` run on a device: on CPUs that torch's fbgemm supports, which are x86."""
    return (
        device.type == "cpu"
        and _ENGINE in torch.backends.quantized.supported_engines
        and hasattr(torch.ops.quantized, "linear_with_input_q_dq_qweight_dq_output_fp32")
    )


def check_int8(device: torch.device) -> None:
    """Raise ``ModelError`` unless ``runs_int8``."""
    if not runs_int8(device):
        raise ModelError(
            "dtype='int8'",
            "weights of 8 bits run on x86 CPUs only",
            evidence=f"the device is {device.type!r}; torch has {torch.backends.quantized.supported_engines}",
            remedy="choose dtype='auto'",
        )


def _onednn_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return product


def matrix_product(device: torch.device, dtype: torch.dtype) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a function that multiplies rows ``[rows, in]`` by a matrix ``[out, in]``.

    For float32 on x86 ``F.linear`` calls MKL, which needs 42 ms for one row and 65 to 110 ms for 8 (all weights of the
    embedded model, two cores of an AMD EPYC).  oneDNN needs 36 and 44 ms and reads the weights in the layout of the
    file.  From 2 rows on, its result for a row is bitwise independent of the other rows.  torch's compiler calls this
    product, which has no public name.
    """
    on_x86 = device.type == "cpu" and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    if on_x86 and dtype == torch.float32 and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return _onednn_product
    return F.linear
