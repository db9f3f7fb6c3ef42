"""The local files that a name means, and ids of the hub."""

from __future__ import annotations

from pathlib import Path

import pytest

from structgen.errors import ModelError
from structgen.models.location import check_complete, configuration, find_local
from structgen.models.model_input import fills_canvases


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one model of each kind, which is also the working folder."""
    for name in ("hf", "one", "two", "none"):
        (tmp_path / name).mkdir()
    (tmp_path / "hf" / "config.json").write_text("{}")
    for path in ("one/a.gguf", "two/a.gguf", "two/b.gguf", "hf/also.gguf"):
        (tmp_path / path).write_bytes(b"GGUF....")
    (tmp_path / "text.gguf").write_bytes(b"no model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("hf", "hf"),
        ("./hf/", "hf"),
        ("one", "one/a.gguf"),
        ("two/b.gguf", "two/b.gguf"),
        (Path("one"), "one/a.gguf"),
    ],
)
def test_files_and_folders_are_found(models: Path, source: str | Path, found: str) -> None:
    """A folder stands for the one model in it; config.json wins over a GGUF file beside it."""
    local = find_local(source)
    assert local is not None
    assert (models / local).samefile(models / found)


@pytest.mark.parametrize("source", ["gpt2", "HuggingFaceTB/SmolLM2-135M-Instruct", "a/b_c.d-1"])
@pytest.mark.usefixtures("models")
def test_other_names_are_ids_of_the_hub(source: str) -> None:
    """A name that is spelled like an id and does not exist locally is looked up on the hub."""
    assert find_local(source) is None


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("two", "contains 2 models"),
        ("none", "contains no model"),
        ("text.gguf", "not a GGUF file"),
        ("absent.gguf", "no such file or folder"),
        ("./absent", "no such file or folder"),
        ("/absent/model", "no such file or folder"),
        ("a/b/c", "no such file or folder"),
        ("", "no such file or folder"),
        (Path("gpt2"), "no such file or folder"),
        ("nul\0byte", "no such file or folder|not a valid path"),
        ("x" * 5000, "not a valid path"),
        ("~nobody-of-this-name/x", "no such file or folder|not a valid path"),
    ],
)
@pytest.mark.usefixtures("models")
def test_other_things_are_refused(source: str | Path, problem: str) -> None:
    """Each gives one clear, short error."""
    with pytest.raises(ModelError, match=problem) as caught:
        find_local(source)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        ((), "weights"),
        (("tokenizer.json",), "weights"),
        (("model.safetensors",), "tokenizer"),
        (("pytorch_model-00001-of-00002.bin", "README.md"), "tokenizer"),
        (("model.safetensors", "tokenizer.model"), ""),
        (("model-00001-of-00002.safetensors", "vocab.json", "merges.txt"), ""),
        (("pytorch_model.bin", "qwen.tiktoken"), ""),
    ],
)
def test_a_folder_has_weights_and_a_tokenizer(tmp_path: Path, files: tuple[str, ...], missing: str) -> None:
    """What it lacks is said with what it holds, before anything heavy is imported."""
    for name in ("config.json", *files):
        (tmp_path / name).touch()
    if not missing:
        check_complete(tmp_path)
        return
    with pytest.raises(ModelError, match=f"has a config.json and no {missing}; it holds .*config.json"):
        check_complete(tmp_path)


@pytest.mark.parametrize(
    ("config", "is_diffusion"),
    [
        ('{"model_type": "LLaDA", "architectures": ["LLaDAModelLM"]}', True),
        ('{"model_type": "Dream", "architectures": ["DreamModel"]}', True),
        ('{"model_type": "modernbert", "architectures": ["ModernBertForMaskedLM"]}', True),
        ('{"model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"]}', False),
        ('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}', False),
        ('{"architectures": 3}', False),
        ("[1]", False),
        ("{", False),
        ("", False),
    ],
)
def test_files_say_how_a_model_writes(models: Path, config: str, is_diffusion: bool) -> None:
    """Only what is known to fill canvases does; files that cannot be read say nothing, as GGUF files do."""
    (models / "hf" / "config.json").write_text(config)
    assert fills_canvases(configuration("hf")) is is_diffusion
    assert configuration("one") == {}
