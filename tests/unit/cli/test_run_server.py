"""``structgen run --model http://...``: requests to a server, its answers, and rows of many prompts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from openai_stub_server import Stub, reply, running_stub

from structgen.cli.main import main
from structgen.cli.run_server import API_KEY

pytest.importorskip("httpx", reason="httpx is not installed")

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
}
ADA = '{"name": "Ada",\n "age": 36}'

Outcome = tuple[int, str, str]


@pytest.fixture
def stub() -> Iterator[Stub]:
    with running_stub() as held:
        yield held


@pytest.fixture
def run(stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run the command on the schema and the server: (exit status, standard output, standard error)."""
    schema = tmp_path / "person.json"
    schema.write_text(json.dumps(SCHEMA))

    def call(*arguments: str, file: tuple[str, ...] = (str(schema),), model: str | None = None) -> Outcome:
        status = main(["run", *file, "--model", f"{stub.url}#m" if model is None else model, *arguments])
        return status, *capsys.readouterr()

    return call


def test_a_schema_goes_to_the_server(stub: Stub, run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    """The request has the schema, the messages, the sampling options and the key; the answer is written as it came."""
    monkeypatch.setenv(API_KEY, "secret")
    stub.texts = [ADA]
    options = ("--prompt", "Who?", "--system", "brief", "--temperature", "0.5", "--max-tokens", "70", "--seed", "3")
    assert run(*options)[:2] == (0, ADA + "\n")
    ((path, body),) = stub.requests
    assert path == "/v1/chat/completions"
    assert body["model"] == "m"
    assert body["structured_outputs"] == {"json": {**SCHEMA, "additionalProperties": False}}
    assert body["messages"] == [{"role": "system", "content": "brief"}, {"role": "user", "content": "Who?"}]
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0.5, 70, 3)
    assert stub.headers["Authorization"] == "Bearer secret"


def test_without_a_key_none_is_sent(stub: Stub, run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of other services stay here."""
    monkeypatch.delenv(API_KEY, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "other")
    stub.texts = [ADA]
    assert run()[0] == 0
    assert "Authorization" not in stub.headers


def test_other_descriptions_go_as_grammars(stub: Stub, run: Callable[..., Outcome]) -> None:
    """A regular expression is sent as GBNF, and as the text to continue without a chat."""
    stub.texts = ["2024"]
    status, out, _ = run("--no-chat", "--prompt", "In ", file=("--regex", "[0-9]{4}"))
    assert (status, out) == (0, "2024\n")
    ((path, body),) = stub.requests
    assert (path, body["prompt"]) == ("/v1/completions", "In ")
    assert "[0-9]" in body["structured_outputs"]["grammar"]


def test_json_and_stream(stub: Stub, run: Callable[..., Outcome]) -> None:
    """``--json`` has what the server tells, and ``--stream`` the text alone."""
    stub.texts = ['{"name": "Bo", "age": 999}', ADA, ADA]
    status, out, _ = run("--json")
    answer = json.loads(out)
    assert status == 0
    assert (answer["value"], answer["text"], answer["seed"]) == ({"name": "Ada", "age": 36}, ADA, 0)
    assert answer["requests"] == 2  # the first answer leaves the schema, so it is asked for again
    assert answer["usage"] == {"prompt_tokens": 11, "completion_tokens": len(ADA)}
    assert run("--stream", "--prompt", "Who?")[:2] == (0, ADA + "\n")


def test_options_of_the_description_hold(stub: Stub, run: Callable[..., Outcome]) -> None:
    """An answer is checked as the options say: here the schema's other order is allowed."""
    stub.texts = ['{"age": 36, "name": "Ada"}'] * 4
    assert run("--order", "any")[0] == 0
    status, out, err = run("--order", "declared")
    assert (status, out) == (1, "")
    assert """found 'ag', expected 'n'""" in err
    stub.texts = [ADA]
    assert run("--additional", "written")[0] == 0
    assert stub.requests[-1][1]["structured_outputs"] == {"json": SCHEMA}


def test_rows_of_a_server(stub: Stub, run: Callable[..., Outcome], tmp_path: Path) -> None:
    """Each line is a request; one that fails is a row with an error."""
    path = tmp_path / "in.jsonl"
    path.write_text('{"prompt": "a", "id": "x"}\n{"prompt": "b", "seed": 7}\n')
    stub.texts = [ADA, ADA]
    stub.instead = lambda handler, number: number == 2 and reply(handler, 500, {"error": {"message": "full"}})
    status, out, _ = run("--prompts", str(path), "--batch-size", "1")
    rows = [json.loads(line) for line in out.splitlines()]
    assert status == 1
    assert (rows[0]["id"], rows[0]["value"]) == ("x", {"name": "Ada", "age": 36})
    assert rows[1]["index"] == 1
    assert "full" in rows[1]["error"]
    assert [body["seed"] for body in stub.bodies] == [0, 7]


def test_programs_on_a_server(stub: Stub, run: Callable[..., Outcome], tmp_path: Path) -> None:
    """A program takes the server's model too."""
    path = tmp_path / "programs.py"
    path.write_text(
        "import structgen as sg\nfrom typing import Literal\n\n"
        '@sg.program\ndef sure(text: str) -> Literal["yes", "no"]:\n    """{text}"""\n'
    )
    stub.texts = ["no"]
    assert run("--arg", "text=Well?", file=(f"{path}:sure",))[:2] == (0, "no\n")
    assert stub.bodies[0]["structured_outputs"] == {"choice": ["yes", "no"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--drafter", "none"), "the server drafts by itself"),
        (("--potential", "a.py:b"), "--potential is not for a model on a server"),
        (("--weights",), "--weights is not for a model on a server"),
        (("--runtime", "torch"), "--runtime is not for a model on a server: the server has its own"),
        (("--device", "cpu"), "--device is not for a model on a server"),
        (("--decoder", "diffusion"), "--decoder diffusion is for models in this process"),
        (("--model-name", "n"), "give one of them"),
    ],
)
def test_options_without_use_are_refused(
    stub: Stub, run: Callable[..., Outcome], arguments: tuple[str, ...], words: str
) -> None:
    """What a server cannot do is refused before anything is sent."""
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert words in err
    assert not stub.canaries


def test_the_name_of_the_model(stub: Stub, run: Callable[..., Outcome]) -> None:
    """It comes from ``--model-name`` or from the address; without it nothing is sent."""
    stub.texts = [ADA]
    assert run("--model-name", "qwen", model=stub.url)[0] == 0
    assert stub.bodies[0]["model"] == "qwen"
    status, _, err = run(model=stub.url)
    assert status == 2
    assert "add --model-name NAME" in err
    status, _, err = run("--model-name", "qwen", model="hub/name")
    assert status == 2
    assert "--model-name is for a server" in err
