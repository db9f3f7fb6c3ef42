"""``structgen serve``: options that do not go together are refused before a model is loaded."""

from __future__ import annotations

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
