"""The examples of docs/decoding.md run."""

from __future__ import annotations

import json
import re

import pytest
from docs_run import run_page

import structgen
from structgen.engine import Vocabulary
from structgen.models import HashModel


def test_examples_run(json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block runs, in order, on a hash model, and gives the documented output."""
    monkeypatch.setattr(structgen, "load_model", lambda: HashModel(json_vocabulary), raising=False)
    names = run_page("decoding.md")
    assert set(json.loads(names["result"].text)) == {"name", "age"}
    assert names["found"]["answer"] in ("yes", "no")
    assert names.blocks == 5


def test_examples_of_sampling_run(json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same holds for docs/sampling.md."""
    monkeypatch.setattr(structgen, "load_model", lambda: HashModel(json_vocabulary, seed=3), raising=False)
    names = run_page("sampling.md")
    assert names.blocks == 4
    assert names["one"].log_weight < 0
    assert names["in_order"]({"start": 1, "end": 2})
    assert all(re.fullmatch("(yes|maybe), (cat|dog)s", result.text) for result in names["samples"].results)
    assert names["again"].log_evidence < 0
