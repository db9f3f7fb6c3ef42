"""``structgen serve``: options that do not go together are refused before a model is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from structgen.cli.main import main


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
