"""Diffusion decoding as a user meets it: the command line and programs on the embedded diffusion model."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field

import structgen as sg
from structgen.cli.main import main

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from training.embedded_diffusion.examples import examples
from training.embedded_diffusion.tasks import TASKS

SCHEMA = Path(__file__).resolve().parents[2] / "examples" / "pet.schema.json"
PROMPT = "pet: Rex the dog, 4 years, has its shots"


@pytest.fixture(scope="module")
def model() -> Any:
    """The embedded diffusion model."""
    return sg.load_diffusion_model(device="cpu")


class Pet(BaseModel):
    name: str = Field(min_length=1, max_length=40)
    kind: Literal["dog", "cat", "horse", "rabbit", "parrot"]
    age: int = Field(ge=0, le=99)
    vaccinated: bool


def test_the_command_line_fills_a_canvas(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The output is valid against the schema, in fewer passes than tokens; the replay page is written."""
    if not SCHEMA.is_file():
        pytest.skip(f"the examples are not beside the tests: no {SCHEMA}")
    page = tmp_path / "replay.html"
    options = ("--decoder", "diffusion", "--prompt", PROMPT, "--policy", "factor", "--json", "--replay", str(page))
    status = main(["run", str(SCHEMA), *options])
    out, err = capsys.readouterr()
    assert status == 0, err
    held = json.loads(out)
    jsonschema.validate(json.loads(held["text"]), json.loads(SCHEMA.read_text()))
    assert held["value"]["name"] == "Rex"
    assert held["stats"]["forwards"] < len(held["tokens"])
    assert page.read_text().count('class="slot') >= held["canvas"]["slots"]


def test_a_program_runs_on_it(model: Any) -> None:
    """Types, a conversation of two answers, and sampling by seed work."""

    @sg.program(describe=False)
    def keep(text: str) -> Generator[Any, Any, Any]:
        yield f"pet: {text}"
        pet = yield Pet
        yield sg.program.user(f"pet: {text}")
        kind = yield Literal["dog", "cat"]
        return pet, kind

    pet, kind = keep(
        "Rex the dog, 4 years, has its shots", model=model, unmasking=sg.Unmasking(policy=sg.policies.Factor())
    )
    assert pet.name == "Rex"
    assert kind in ("dog", "cat")
    sampled = [
        keep("Rex the dog", model=model, sampler=sg.diffusion.Posterior(), max_tokens=40, seed=seed) for seed in (1, 1)
    ]
    assert sampled[0] == sampled[1]


def test_records_keep_to_their_schemas(model: Any) -> None:
    """Prompts of several kinds, with names that training never showed, give valid records; most names are right."""
    right = total = 0
    for example in examples("new_values", seed=5, count=4):
        schema = TASKS[example.task].schema
        grammar = sg.json_schema(dict(schema), policy=sg.grammars.JsonPolicy(whitespace="compact"))
        result = sg.generate(model, example.prompt, grammar, policy=sg.policies.Threshold(0.9), canvas=64)
        jsonschema.validate(json.loads(result.text), schema)
        right += sum(result.value.get(key) == value for key, value in example.record.items())
        total += len(example.record)
    assert right > total / 2
