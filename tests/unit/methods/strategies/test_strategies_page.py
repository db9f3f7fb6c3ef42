"""The examples of docs/strategies.md run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import structgen
from structgen.engine import Vocabulary
from structgen.models import HashModel

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "strategies.md"


def test_examples_run(json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block runs, in order, on a model that is a hash, and gives what the text says."""
    if not DOCUMENT.is_file():
        pytest.skip(f"the documents are not beside the tests: no {DOCUMENT}")
    seeds = iter(range(100))
    monkeypatch.setattr(structgen, "load_model", lambda: HashModel(json_vocabulary, seed=next(seeds)), raising=False)
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(DOCUMENT), "exec"), names)
    assert len(blocks) >= 5
    assert names["answer"] in ("yes", "no")
    assert "name" in json.loads(names["result"].text)
    assert 0 <= names["reports"][0].share <= 1
