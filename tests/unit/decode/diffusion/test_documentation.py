"""The examples of docs/guides/diffusion.md run."""

from __future__ import annotations

import json
import re

import pytest
from docs_run import run_page

import structgen
from structgen.engine import Vocabulary
from structgen.models.diffusion import HashDiffusion


def test_examples_run(json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block runs by itself on a hash model, and gives the documented output."""
    tokens = [*json_vocabulary.tokens, b""]
    vocabulary = Vocabulary(tokens, eos=list(json_vocabulary.eos), special={len(tokens) - 1: "<mask>"})
    model = HashDiffusion(vocabulary, context=0.5, writes='{"name": "Ada", "age": 36}')
    monkeypatch.setattr(structgen, "load_diffusion_model", lambda: model, raising=False)
    names = run_page("guides/diffusion.md")
    assert names["result"].value == json.loads(names["result"].text) == {"name": "Ada", "age": 36}
    assert names["result"].stats.forwards < names["result"].stats.tokens
    assert all(re.fullmatch("(yes|no|maybe)[.!]", text) for text in names["draws"])
    assert names["at_once"].stats.forwards <= 4
    assert names["given"].text.startswith('{"name": "')
    assert names["drafted"].tokens == names["stepwise"].tokens
    assert names["drafted"].stats.forwards < names["stepwise"].stats.forwards
    assert {"name", "age"} == set(json.loads(names["judged"].text))
    assert names["in_order"].forwards == 4
    assert names["page"].lstrip().lower().startswith("<!doctype html>")
    assert names.blocks == 7
