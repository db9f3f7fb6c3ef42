"""The examples of docs/remote.md run."""

from __future__ import annotations

import pytest
from docs_run import run_page
from openai_stub_server import running_stub

from structgen.integrations import openai_server


def test_examples_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each block runs by itself against a server with the constraints of vLLM; the outputs are those of the page."""
    remote = openai_server.remote
    with running_stub() as stub:
        stub.texts.append('{"name": "Ada Lovelace", "decade": 1810}')

        def at_the_stub(url: str, model: str, **settings: object) -> object:
            assert url == "http://localhost:8000/v1"
            return remote(stub.url, model, **settings)

        monkeypatch.setattr(openai_server, "remote", at_the_stub)
        names = run_page("remote.md", after=lambda names: names["lm"].close())
    assert names.blocks == 2
    assert [str(loss) for loss in names["run"].outcomes[0].result.losses] == [
        "#/properties/decade: 'multipleOf' is not enforced"
    ]
    assert capsys.readouterr().out.splitlines() == [
        "name='Ada Lovelace' decade=1810",
        "#: 'multipleOf' is not enforced",
    ]
