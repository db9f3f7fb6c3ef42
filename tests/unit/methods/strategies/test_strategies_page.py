"""The examples of docs/reference/strategies.md run."""

from __future__ import annotations

import json
import re

import pytest
from docs_run import run_page

import structgen
from structgen.engine import Vocabulary
from structgen.models import HashModel


def test_examples_run(json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block runs by itself on a hash model, and gives the documented output."""
    seeds = iter(range(100))
    monkeypatch.setattr(structgen, "load_model", lambda: HashModel(json_vocabulary, seed=next(seeds)), raising=False)
    texts: list[str] = []
    names = run_page(
        "reference/strategies.md", after=lambda names: texts.append(getattr(names.get("result"), "text", ""))
    )
    assert names.blocks == 8
    assert names["answer"] in ("yes", "no")
    assert "name" in json.loads(texts[1])
    assert all(isinstance(person, dict) for person in json.loads(texts[2]))
    assert all(re.fullmatch("[A-Z][a-z]{1,15}( [A-Z][a-z]{1,15})?", text) for text in texts[3:7])
    assert 0 <= names["reports"][0].share <= 1
