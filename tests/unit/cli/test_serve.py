"""``structgen serve``: options that do not go together are refused before a model is loaded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from structgen.cli.main import main
from structgen.cli.terminal import Failure


def has_products_of_8_bits() -> bool:
    """Whether torch is there, on an x86 CPU."""
    torch = pytest.importorskip("torch")
    return "fbgemm" in torch.backends.quantized.supported_engines


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--decoder", "diffusion", "--runtime", "torch"), "--runtime: torch runs diffusion models"),
        (("--trust-remote-code",), "--trust-remote-code: models that write token by token"),
        (("--decoder", "diffusion", "--model", "no-such-folder/model.bin"), "no-such-folder"),
    ],
)
def test_unusable_options_end_the_command(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With status 2, and a message that names them."""
    pytest.importorskip("starlette")
    assert main(["serve", "--port", "0", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_files_decide_which_options_a_model_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--decoder`` is not needed for a family of diffusion models, and decides where it is given."""
    pytest.importorskip("starlette")
    (tmp_path / "config.json").write_text('{"model_type": "llada"}')
    command = ["serve", "--port", "0", "--model", str(tmp_path)]
    assert main([*command, "--runtime", "torch"]) == 2
    assert "--runtime: torch runs diffusion models" in capsys.readouterr().err
    assert main([*command, "--decoder", "autoregressive", "--trust-remote-code"]) == 2
    assert "--trust-remote-code: models that write token by token" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ((), None),
        (("--model", "embedded"), None),
        (("--model", "model.gguf"), "auto"),
        (("--runtime", "llama.cpp"), "llama.cpp"),
    ],
)
def test_the_runtime_is_the_one_that_serves_many_clients_best(
    arguments: tuple[str, ...], wanted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch for the embedded model, unless another one is asked for."""
    pytest.importorskip("starlette")
    asked: list[str] = []

    def load(name: str, progress: object, *, device: str, runtime: str) -> None:
        asked.append(runtime)
        raise Failure("enough", 2)

    monkeypatch.setattr("structgen.cli.serve.model_of", load)
    monkeypatch.setattr("structgen.cli.serve.decoder_of", lambda *_: "autoregressive")
    assert main(["serve", "--port", "0", *arguments]) == 2
    assert asked == [wanted or ("torch" if has_products_of_8_bits() else "auto")]


def test_a_missing_package_comes_with_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the extra, the error has the line that installs it."""
    monkeypatch.delitem(sys.modules, "structgen.integrations.server.listening", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve"]) == 1
    assert "pip install 'structgen-lm[server]'" in capsys.readouterr().err
