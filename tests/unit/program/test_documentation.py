"""The examples of the pages on programs run."""

from __future__ import annotations

import re
from typing import Any

import pytest
from docs_run import run_page, stand_in

from structgen.engine import Vocabulary
from structgen.models import HashModel


def test_examples_run(
    json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every Python block runs by itself on a hash model, and gives the documented output."""
    model = HashModel(json_vocabulary)
    stand_in(monkeypatch, model)
    monkeypatch.setattr(HashModel, "encode_prompt", _with_turns(HashModel.encode_prompt))
    names = run_page("guides/programs.md")
    assert names.blocks == 10
    assert isinstance(names["run"].value, int)
    assert run_page("guides/thinking.md").blocks == 1
    assert set(run_page("guides/probability.md")["labels"]) == {"positive", "negative", "neutral"}
    assert run_page("guides/streaming.md").blocks == 7
    assert re.search(r"^name = .*\nage = \d+$", capsys.readouterr().out, re.MULTILINE)


def _with_turns(encode: Any) -> Any:
    """A chat template for a model that has none."""

    def encode_prompt(self: HashModel, prompt: Any, /, *, chat: bool = True) -> list[int]:
        if not isinstance(prompt, str):
            prompt = "".join(f"<{turn['role']}>{turn['content']}" for turn in prompt)
        ids: list[int] = encode(self, prompt, chat=chat)
        return ids

    return encode_prompt
