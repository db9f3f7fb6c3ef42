"""``structgen run --device`` and ``--runtime``: where a model runs, and what runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import write_gguf

import structgen.models
from structgen.cli.main import main
from structgen.engine import Vocabulary
from structgen.models.diffusion import HashDiffusion
from structgen.models.toy.hash import HashModel

PROGRAM = """
import structgen as sg

@sg.program
def answer(text: str) -> bool:
    \"\"\"Is it? {text}\"\"\"
"""


@pytest.mark.parametrize("given", [None, "cpu", "cuda:1"])
@pytest.mark.parametrize("way", ["description", "program", "canvas"])
def test_models_are_loaded_where_it_says(
    way: str, given: str | None, json_vocabulary: Vocabulary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def load(made: Any) -> Any:
        def loaded(source: Any, *, device: str, **_: Any) -> Any:
            asked.append(device)
            return made

        return loaded

    masked = Vocabulary([*json_vocabulary.tokens, b""], eos=[0], special={json_vocabulary.size: "<mask>"})
    monkeypatch.setattr(structgen.models, "load_model", load(HashModel(json_vocabulary)))
    monkeypatch.setattr(structgen.models, "load_diffusion_model", load(HashDiffusion(masked)))
    (tmp_path / "yes.json").write_text(json.dumps({"enum": [True, False]}))
    (tmp_path / "yes.py").write_text(PROGRAM)
    if way == "program":
        arguments = ["run", f"{tmp_path / 'yes.py'}:answer", "--arg", "text=so"]
    else:
        arguments = ["run", str(tmp_path / "yes.json"), *(["--decoder", "diffusion"] if way == "canvas" else [])]
    assert main([*arguments, *([] if given is None else ["--device", given])]) == 0
    assert asked == [given or "auto"]


def test_a_device_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    (tmp_path / "yes.json").write_text(json.dumps({"enum": [True, False]}))
    assert main(["run", str(tmp_path / "yes.json"), "--device", "nowhere"]) == 2
    assert "device 'nowhere': torch cannot use it" in capsys.readouterr().err


def test_a_gguf_file_in_llama_cpp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("xllamacpp")
    write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "yes.json").write_text(json.dumps({"enum": [True, False]}))
    arguments = ["run", str(tmp_path / "yes.json"), "--model", str(tmp_path / "tiny.gguf"), "--runtime", "llama.cpp"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.strip() in ("true", "false")
    assert main(["run", str(tmp_path / "yes.json"), "--model", str(tmp_path), "--runtime", "llama.cpp"]) == 0
    assert main([*arguments, "--device", "cuda"]) == 2
    assert "device='cuda': llama.cpp takes the weights as the file has them" in capsys.readouterr().err


def test_a_runtime_that_has_no_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "yes.json").write_text(json.dumps({"enum": [True, False]}))
    assert main(["run", str(tmp_path / "yes.json"), "--runtime", "llama.cpp", "--decoder", "diffusion"]) == 2
    assert "--runtime is not for --decoder diffusion: torch runs diffusion models" in capsys.readouterr().err
