"""A small Llama whose later layers matter less than the first."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from layered_llama import write_llama

if TYPE_CHECKING:
    from structgen.models.llama.model import LlamaModel


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LlamaModel:
    torch = pytest.importorskip("torch")
    from structgen.models.llama.model import LlamaModel

    folder = write_llama(tmp_path_factory.mktemp("llama") / "six", layers=6, deeper=0.6)
    return LlamaModel(folder, name="six", device=torch.device("cpu"), dtype=torch.float32)
