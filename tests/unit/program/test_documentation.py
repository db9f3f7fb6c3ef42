"""The examples of docs/programs.md run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import structgen
from structgen.engine import Vocabulary
from structgen.models import HashModel

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "programs.md"


def test_examples_run(
    json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every Python block runs, in order, on a model that is a hash, and gives what the text says."""
    if not DOCUMENT.is_file():
        pytest.skip(f"the documents are not beside the tests: no {DOCUMENT}")
    monkeypatch.setattr(structgen, "load_model", lambda: HashModel(json_vocabulary), raising=False)
    monkeypatch.setattr(HashModel, "encode_prompt", _with_turns(HashModel.encode_prompt))
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": "programs"}
    for block in blocks:
        exec(compile(block, str(DOCUMENT), "exec", dont_inherit=True), names)
    assert len(blocks) == 8
    assert names["run"].value.age >= 0
    assert re.search(r"^name = .*\nage = \d+$", capsys.readouterr().out, re.MULTILINE)


def _with_turns(encode: Any) -> Any:
    """A chat template for a model that has none."""

    def encode_prompt(self: HashModel, prompt: Any, /, *, chat: bool = True) -> list[int]:
        if not isinstance(prompt, str):
            prompt = "".join(f"<{turn['role']}>{turn['content']}" for turn in prompt)
        ids: list[int] = encode(self, prompt, chat=chat)
        return ids

    return encode_prompt
