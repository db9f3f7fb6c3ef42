"""The examples of docs/guides/remote.md and docs/guides/server.md run."""

from __future__ import annotations

import openai
import pytest
from docs_run import run_page
from openai_stub_server import running_stub
from served_model import VOCABULARY, served

from structgen.integrations import openai_server
from structgen.models import HashModel


def test_examples_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Each block runs by itself against a server with the constraints of vLLM; the outputs are those of the page."""
    remote = openai_server.remote
    with running_stub() as stub:
        stub.texts.append('{"name": "Ada Lovelace", "decade": 1810}')

        def at_the_stub(url: str, model: str, **settings: object) -> object:
            assert url == "http://localhost:8000/v1"
            return remote(stub.url, model, **settings)

        monkeypatch.setattr(openai_server, "remote", at_the_stub)
        names = run_page("guides/remote.md", after=lambda names: names["lm"].close())
    assert names.blocks == 2
    assert [str(loss) for loss in names["run"].outcomes[0].result.losses] == [
        "#/properties/decade: 'multipleOf' is not enforced"
    ]
    assert capsys.readouterr().out.splitlines() == [
        "name='Ada Lovelace' decade=1810",
        "#: 'multipleOf' is not enforced",
    ]


def test_a_client_reads_a_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The first block of docs/guides/server.md runs, but for address and model; `make clients` runs the others."""
    with served(HashModel(VOCABULARY, seed=1, name="smollm2-135m-instruct")) as address:
        client = openai.OpenAI

        def at_this_one(*, base_url: str, api_key: str) -> openai.OpenAI:
            assert base_url == "http://127.0.0.1:8000/v1"
            return client(base_url=f"{address}/v1", api_key=api_key)

        monkeypatch.setattr(openai, "OpenAI", at_this_one)
        names = run_page("guides/server.md", after=lambda names: names["client"].close(), without="Clients")
    assert names.blocks == 1
    assert isinstance(names["answer"].choices[0].message.parsed, names["City"])
    assert capsys.readouterr().out.startswith("name=")
