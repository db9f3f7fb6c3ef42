"""The examples of docs/strategies.md run."""

from __future__ import annotations

import json

import pytest
from docs_run import run_page

import structgen
from structgen.engine import Vocabulary
from structgen.models import HashModel


def test_examples_run(json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block runs, in order, on a hash model, and gives the documented output."""
    seeds = iter(range(100))
    monkeypatch.setattr(structgen, "load_model", lambda: HashModel(json_vocabulary, seed=next(seeds)), raising=False)
    names = run_page("strategies.md")
    assert names.blocks >= 5
    assert names["answer"] in ("yes", "no")
    assert "name" in json.loads(names["result"].text)
    assert 0 <= names["reports"][0].share <= 1
