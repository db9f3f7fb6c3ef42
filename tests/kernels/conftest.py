"""Kernels run in Triton's interpreter (see ``tests/conftest.py``).  Uninitialized memory is poisoned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")


@pytest.fixture(autouse=True, scope="session")
def _quick() -> Iterator[None]:
    from quick_interpreter import quick_interpreter

    with quick_interpreter():
        yield


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill uninitialized tensors with values that no test may see."""
    for name in ("empty", "empty_like", "empty_strided"):
        original = getattr(torch, name)
        monkeypatch.setattr(torch, name, lambda *args, _make=original, **kwargs: _poison(_make(*args, **kwargs)))


@pytest.fixture(params=["torch", "triton", pytest.param("rough", marks=pytest.mark.nightly)])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on each backend; nightly also with the rounding of a GPU."""
    from rough_interpreter import rough_interpreter
    from structgen_kernels.dispatch import use_backend

    if request.param == "rough":
        with rough_interpreter(), use_backend("triton"):
            yield "triton"
    else:
        with use_backend(request.param):
            yield request.param


def _poison(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_floating_point():
        return tensor.fill_(torch.nan)
    return tensor.fill_(True if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max)
