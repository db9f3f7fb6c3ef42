"""The examples of docs/decoding.md run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import structgen
from structgen.engine import Vocabulary
from structgen.models import HashModel

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "decoding.md"


def test_examples_run(json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block runs, in order, on a model that is a hash, and gives what the text says."""
    if not DOCUMENT.is_file():
        pytest.skip(f"the documents are not beside the tests: no {DOCUMENT}")
    monkeypatch.setattr(structgen, "load_model", lambda: HashModel(json_vocabulary), raising=False)
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(DOCUMENT), "exec"), names)
    assert set(json.loads(names["result"].text)) == {"name", "age"}
    assert names["found"]["answer"] in ("yes", "no")
    assert len(blocks) == 3


def test_examples_of_sampling_run(json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for docs/sampling.md."""
    page = DOCUMENT.parent / "sampling.md"
    if not page.is_file():
        pytest.skip(f"the documents are not beside the tests: no {page}")
    monkeypatch.setattr(structgen, "load_model", lambda: HashModel(json_vocabulary, seed=3), raising=False)
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)
    assert len(blocks) == 3
    assert names["in_order"]({"start": 1, "end": 2})
    assert all(re.fullmatch("(yes|maybe), (cat|dog)s", result.text) for result in names["samples"].results)
    assert names["again"].log_evidence < 0
