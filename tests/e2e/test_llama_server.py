"""Programs on a real llama-server: that of ``xllamacpp``, in this process, with the embedded model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

import structgen as sg
from structgen.integrations.openai_server import OpenAIServer, remote

pytestmark = [pytest.mark.model, pytest.mark.nightly]


@pytest.fixture(scope="module")
def server() -> Iterator[OpenAIServer]:
    """The server as a client sees it, which finds out what it is."""
    xllamacpp = pytest.importorskip("xllamacpp")
    from structgen.models.llama.embedded import embedded_gguf

    params = xllamacpp.CommonParams()
    params.model.path = str(embedded_gguf())
    params.n_ctx, params.n_parallel, params.n_gpu_layers = 2048, 1, 0
    held: Any = xllamacpp.Server(params)
    with remote(f"{held.listening_address}/v1", "embedded") as client:
        yield client
    del held  # the server ends with its object


class Sight(BaseModel):
    """What llama-server's own reader enforces but for the multiple and the bound."""

    city: str = Field(max_length=20)
    decade: int = Field(multiple_of=10, ge=1000, le=2090)
    height: float = Field(gt=1.5, le=900)


def test_what_its_reader_of_schemas_leaves_out_goes_as_a_grammar(server: OpenAIServer) -> None:
    """One request is enough, as the server enforces all of the type."""
    translation = server.translation(Sight)
    assert list(translation.parameters) == ["grammar"]
    assert translation.losses == ()

    @sg.program
    def describe(name: str) -> Sight:
        """Where is {name}, and since when?"""

    for name in ("the Eiffel Tower", "Big Ben", "the Brandenburg Gate"):
        run = describe.run(name, model=server, max_tokens=120, tries=1)
        assert run.outcomes[0].result.requests == 1
        assert run.value.decade % 10 == 0
        assert '{"city": "' in run.text


def test_other_types(server: OpenAIServer) -> None:
    """Schemas that it reads as they are, and grammars."""
    assert list(server.translation(list[bool]).parameters) == ["response_format"]

    @sg.program
    def classify(text: str) -> Literal["good", "bad"]:
        """Is this review good or bad? {text}"""

    assert classify("I love it.", model=server) in ("good", "bad")

    @sg.program
    def date(text: str) -> Annotated[str, sg.regex("[0-9]{4}-[01][0-9]-[0-3][0-9]")]:
        """When? {text}"""

    assert len(date("On 5 May 2026.", model=server)) == 10
