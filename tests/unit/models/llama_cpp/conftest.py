"""The tiny model in llama.cpp."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_gguf import write_gguf


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with random weights, a byte-level vocabulary of 264 tokens and a chat template."""
    pytest.importorskip("xllamacpp")
    path = tmp_path_factory.mktemp("tiny-gguf") / "tiny.gguf"
    write_gguf(path)
    return path
