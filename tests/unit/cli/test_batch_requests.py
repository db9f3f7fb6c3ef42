"""``structgen batch`` on requests in OpenAI's batch format: the answers are those of the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from openai import OpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from served_model import VOCABULARY, served

from structgen.cli.main import main
from structgen.models import HashModel
from structgen.program.batch_row import item_seed

JOB = """
from served_model import VOCABULARY
from structgen.models import HashModel

def model():
    return HashModel(VOCABULARY, seed=1, max_context=2000)
"""
FORMAT = {
    "type": "json_schema",
    "json_schema": {
        "name": "answer",
        "schema": {
            "type": "object",
            "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}, "is": {"type": "boolean"}},
            "required": ["age", "is"],
            "additionalProperties": False,
        },
    },
}


def request(name: str, url: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


def chat(name: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"I am {name}"}]
    return request(name, messages=messages, max_tokens=40, temperature=1, response_format=FORMAT, **more)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("job.py").write_text(JOB)
    return tmp_path


def answers(lines: list[dict[str, Any]], *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run the command; its status, and its rows by their ``custom_id``."""
    Path("in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    status = main(["batch", "in.jsonl", "out.jsonl", "--model", "job.py:model", *arguments])
    rows = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    found = {row["custom_id"]: row for row in rows}
    assert len(found) == len(rows)
    return status, found


def content(row: dict[str, Any]) -> Any:
    """What an answer says: ids and times differ from run to run."""
    return row["response"]["body"]["choices"]


@pytest.mark.usefixtures("folder")
def test_answers_are_those_of_the_server() -> None:
    """Bodies have OpenAI's shapes, and say what a server says to the same request with the same seed."""
    lines = [chat("a", seed=3), chat("b"), chat("c", n=2, logprobs=True)]
    lines.append(request("d", "/v1/completions", prompt="Once", max_tokens=5, temperature=1))
    text = {"format": {"type": "json_schema", **FORMAT["json_schema"]}}  # type: ignore[dict-item]
    lines.append(request("e", "/v1/responses", input="Who?", max_output_tokens=40, temperature=1, text=text))
    status, rows = answers(lines, "--batch-size", "2", "--seed", "4")
    assert status == 0
    for row in rows.values():
        assert row.keys() == {"id", "custom_id", "response", "error"}
        assert row["error"] is None
        assert row["response"]["status_code"] == 200
    bodies = {name: row["response"]["body"] for name, row in rows.items()}
    assert len(ChatCompletion.model_validate(bodies["c"]).choices) == 2
    assert Completion.model_validate(bodies["d"]).choices[0].text
    assert json.loads(Response.model_validate(bodies["e"]).output_text).keys() == {"age", "is"}
    with served(HashModel(VOCABULARY, seed=1, max_context=2000)) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        for line in lines[:3]:
            body = {"seed": item_seed(4, line["custom_id"]), **line["body"]}
            asked = client.chat.completions.create(model="hash", **body)
            told = ChatCompletion.model_validate(bodies[line["custom_id"]])
            assert [each.message.content for each in told.choices] == [each.message.content for each in asked.choices]


@pytest.mark.usefixtures("folder")
def test_requests_that_are_refused_are_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """With the status and the error of the server; the others go on, and the status is 1."""
    lines = [
        chat("good"),
        chat("streams", stream=True),
        chat("other", model="gpt-5"),
        request("schema", messages=[], response_format={"type": "json_schema", "json_schema": {"schema": {"$ref": 1}}}),
        chat("member", no_such_field=1),
        chat("seeds", seed="x"),
    ]
    status, rows = answers(lines)
    assert status == 1
    assert "6 lines: 1 done, 5 failed, 0 left" in capsys.readouterr().err
    codes = {name: row["response"]["status_code"] for name, row in rows.items()}
    assert codes == {"good": 200, "streams": 400, "other": 404, "schema": 400, "member": 400, "seeds": 400}
    assert rows["streams"]["response"]["body"]["error"]["param"] == "stream"
    Path("out.jsonl").unlink()
    assert answers(lines[2:3], "--model-name", "gpt-5")[0] == 0


@pytest.mark.usefixtures("folder")
def test_answers_are_the_same_when_taken_up(capsys: pytest.CaptureFixture[str]) -> None:
    """Requests without a seed get one by their id; in two processes too."""
    lines = [chat(f"n{number}") for number in range(5)]
    _, whole = answers(lines)
    kept = Path("out.jsonl").read_bytes().splitlines(keepends=True)
    Path("out.jsonl").write_bytes(b"".join(kept[:2]) + kept[2][:50])
    status, rows = answers(lines, "--resume", "--workers", "2")
    assert status == 0
    assert {name: content(row) for name, row in rows.items()} == {name: content(row) for name, row in whole.items()}
    assert len({json.dumps(content(row)) for row in rows.values()}) > 1
    assert "2 of these rows are from an earlier run" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"custom_id": "a"}, 'in.jsonl:2: it has no "method"'),
        ({**chat("a"), "extra": 1}, 'in.jsonl:2: there is no "extra"; there are custom_id, method, url, body'),
        ({**chat("a"), "custom_id": 1}, 'in.jsonl:2: "custom_id" must be a text; found 1'),
        ({**chat("a"), "method": "GET"}, "in.jsonl:2: expected POST and one of /v1/chat/completions"),
        ({**chat("a"), "url": "/v1/embeddings"}, "in.jsonl:2: expected POST and one of /v1/chat/completions"),
        ({**chat("a"), "body": []}, 'in.jsonl:2: "body" must be an object; found []'),
        (chat("first"), "in.jsonl: lines 1 and 2 have the same id 'first'"),
        ({"args": {}}, 'in.jsonl:2: there is no "args"'),
        (
            {"prompt": "Hello"},
            "requests in OpenAI's format: name a program, or give prompts to structgen run --prompts",
        ),
    ],
)
def test_other_lines_are_refused(line: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is run: the file is of another kind, or its rows could not be told apart."""
    Path("in.jsonl").write_text(json.dumps(chat("first")) + "\n" + json.dumps(line) + "\n")
    assert main(["batch", "in.jsonl", "out.jsonl", "--model", "job.py:model"]) == 2
    assert said in capsys.readouterr().err
    assert not Path("out.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "http://localhost:1/v1#x"], "requests are answered in this process"),
        (["--max-tokens", "3"], "are for programs"),
        (["--attempts", "3"], "are for programs"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_options_of_programs_are_refused(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", "in.jsonl", "out.jsonl", *arguments]) == 2
    assert said in capsys.readouterr().err
