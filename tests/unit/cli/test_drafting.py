"""``structgen run --drafter``: outputs stay the same, costs are reported, and impossible options are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from structgen import drafters
from structgen.cli import (
    run as run_module,
    run_canvas as canvas_module,
    run_option as drafting_module,
)
from structgen.cli.main import main
from structgen.cli.run_option import DRAFTER_NAMES, drafter_of
from structgen.decode import Speculation
from structgen.engine import Vocabulary
from structgen.methods.catalogue import DRAFTERS
from structgen.models.protocol import LanguageModel
from structgen.models.toy.hash import HashModel
from structgen.progress import ProgressBar

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "email": {"type": "string", "maxLength": 20},
        "n": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["name", "email", "n"],
    "additionalProperties": False,
}
WISH = '{"name": "Ada Lovelace", "email": "ada@lovelace.org", "n": 36}'
PROMPT = "Ada Lovelace, ada@lovelace.org, is 36"
LAYERED = ("layer-skip:skipped=(1,)", "clasp:skipped=1", "dynamic-exit")
ANY_MODEL = [name for name in DRAFTERS if not name.startswith(("layer-skip", "clasp", "dynamic-exit", "draft-model"))]
PROGRAM = '''
from pydantic import BaseModel, Field
import structgen as sg

class Person(BaseModel):
    name: str = Field(max_length=20)
    email: str = Field(max_length=20)
    n: int = Field(ge=0, le=999)

@sg.program
def name(text: str) -> Person:
    """{text}"""

@sg.program(drafter=None)
def plain(text: str) -> Person:
    """{text}"""
'''

Outcome = tuple[int, str, str]
Command = Callable[..., Outcome]


@pytest.fixture
def model(json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> HashModel:
    """The model that the command runs, and drafts with where it loads a draft model."""
    model = HashModel(json_vocabulary, writes=WISH)
    for module in (run_module, drafting_module):
        monkeypatch.setattr(module, "model_of", lambda name, progress, **_: model)
    return model


@pytest.fixture
def run(model: HashModel, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Run the command on a schema: (exit status, standard output, standard error)."""
    schema = tmp_path / "person.json"
    schema.write_text(json.dumps(SCHEMA))

    def call(*arguments: str, file: str | None = None) -> Outcome:
        prompt = () if file else ("--prompt", PROMPT)
        status = main(["run", file or str(schema), *prompt, *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    """A small model whose layers are accessible."""
    torch = pytest.importorskip("torch")
    from layered_llama import write_llama

    from structgen.models.llama.model import LlamaModel

    folder = write_llama(tmp_path_factory.mktemp("llama") / "four", layers=4, deeper=0.6)
    return LlamaModel(folder, name="four", device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "people.py"
    path.write_text(PROGRAM)
    return str(path)


@pytest.mark.parametrize("name", ["auto", *ANY_MODEL, "draft-model:model=M,draws=False"])
@pytest.mark.parametrize(
    "sampling", [(), ("-n", "2", "--temperature", "0.7", "--seed", "3")], ids=["greedy", "sampled"]
)
def test_outputs_are_the_same_with_every_drafter(run: Command, name: str, sampling: tuple[str, ...]) -> None:
    if name in ("stand", "short-context"):
        name += ":draws=False"
    plain = run(*sampling, "--drafter", "none")
    status, out, err = run(*sampling, "--drafter", name)
    assert (status, out) == (0, plain[1])
    assert "note:" not in err
    assert "a pass" not in plain[2]


@pytest.mark.parametrize("sampler", ["beam:n=3", "asap:samples=3", "adadec:threshold=0.5"])
def test_searches_take_no_drafter(run: Command, sampler: str) -> None:
    """The default draws no drafts in a search, and a drafter that is named is refused."""
    plain, auto = (run("--sampler", sampler, "--drafter", name) for name in ("none", "auto"))
    assert plain[0] == 0, plain[2]
    assert auto[:2] == plain[:2]
    status, out, err = run("--sampler", sampler, "--drafter", "prompt-lookup")
    assert (status, out) == (2, "")
    assert "--drafter prompt-lookup is not for" in err


@pytest.mark.parametrize("sampler", ["greedy", "smc:particles=4", "bestof:n=3"])
def test_outputs_are_the_same_with_every_sampler(run: Command, sampler: str) -> None:
    plain, auto, reference = (
        run("--sampler", sampler, "--drafter", name) for name in ("none", "auto", "draft-model:model=M,draws=False")
    )
    assert plain[0] == 0, plain[2]
    assert auto[:2] == reference[:2] == plain[:2]


@pytest.mark.parametrize("name", LAYERED)
def test_a_drafter_that_fails_is_one_note(run: Command, name: str) -> None:
    """The model does not show its layers: one note says so, and the output is written all the same."""
    status, out, err = run("--drafter", name)
    assert (status, out) == (0, WISH + "\n")
    (note,) = re.findall("^note: (.*)$", err, re.MULTILINE)
    assert "layers" in note
    assert "the output is not affected" in note
    assert "DraftWarning" not in err


@pytest.mark.parametrize("name", LAYERED)
def test_drafters_of_layers_on_a_model_that_shows_them(
    run: Command, name: str, monkeypatch: pytest.MonkeyPatch, llama: LanguageModel
) -> None:
    monkeypatch.setattr(run_module, "model_of", lambda name, progress, **_: llama)
    pattern = ("--json", "--max-tokens", "40")
    plain = json.loads(run(*pattern, "--drafter", "none")[1])
    status, out, err = run(*pattern, "--drafter", name)
    held = json.loads(out)
    assert status == 0
    assert "note:" not in err
    assert held["text"] == plain["text"]
    assert held["stats"]["drafted"] > 0


def test_the_cost_line_tells_what_drafts_brought(run: Command) -> None:
    """The line has the same counts as ``--json``."""
    stats = json.loads(run("--json", "--drafter", "draft-model:model=M")[1])["stats"]
    _, _, err = run("--drafter", "draft-model:model=M")
    found = re.search(
        r"(\d+) forward passes, ([\d.]+) tokens a pass, (\d+) of (\d+) drafted tokens accepted$", err, re.MULTILINE
    )
    assert found is not None
    assert int(found[1]) == stats["forwards"]
    assert float(found[2]) == round(stats["tokens"] / stats["forwards"], 1)
    assert (int(found[3]), int(found[4])) == (stats["accepted"], stats["drafted"])
    plain = json.loads(run("--json", "--drafter", "none")[1])["stats"]
    assert plain["forwards"] > stats["forwards"]
    assert plain["drafts"] is None
    assert run("--drafter", "none")[2].rstrip().endswith(" forward passes")


def test_json_holds_what_drafts_brought(run: Command) -> None:
    status, out, _ = run("--json", "--drafter", "prompt-lookup")
    stats = json.loads(out)["stats"]
    drafts = stats["drafts"]
    assert status == 0
    assert set(drafts["sources"]) == {"prompt lookup"}
    assert drafts["sources"]["prompt lookup"] == {"drafted": stats["drafted"], "accepted": stats["accepted"]}
    assert stats["accepted"] > 0
    assert sum(drafts["lengths"].values()) == drafts["passes"] <= stats["forwards"]
    assert all(length.isdecimal() for length in drafts["lengths"])
    assert sum(int(length) * count for length, count in drafts["lengths"].items()) >= stats["accepted"]


def test_streams_are_the_same(run: Command) -> None:
    for name in ("auto", "draft-model:model=M"):
        assert run("--stream", "--drafter", name)[:2] == (0, WISH + "\n")


def test_auto_is_the_default(run: Command) -> None:
    assert drafter_of(None, ProgressBar()) == "auto"
    assert drafter_of("auto", ProgressBar()) == "auto"
    assert drafter_of("none", ProgressBar()) is None
    assert json.loads(run("--json")[1])["stats"]["drafts"] is not None


def test_settings_reach_the_drafter(model: HashModel) -> None:
    def made(text: str) -> Any:
        speculation = drafter_of(text, ProgressBar())
        assert isinstance(speculation, Speculation)
        assert speculation.cost == (None if text in ("jacobi", "lookahead") else "assumed")
        return speculation.drafter

    assert made("layer-skip:skipped=(1,4),draws=False") == drafters.LayerSkip((1, 4), draws=False)
    assert made("prompt-lookup:places=2,values=False") == drafters.PromptLookup(2, values=False)
    assert made("dynamic-exit:exits=[2,3],longest=4").longest == 4
    assert made("short-context:tokens=300") == drafters.ShortContext(tokens=300)
    assert made("draft-model:model=M") == drafters.DraftModel(model)
    assert (made("jacobi").window, made("lookahead").hits) == (8, 3)
    for name, bridge in {
        "match": drafters.ExactStringMatch(),
        "intersection": drafters.TokenIntersection(),
        "rejection:depth=1": drafters.StringRejection(depth=1),
    }.items():
        assert made(f"draft-model:model=M,bridge={name}") == drafters.DraftModel(model, bridge=bridge)


@pytest.mark.parametrize("name", DRAFTERS)
def test_settings_are_literals(name: str) -> None:
    """A setting on the command line has the type of its annotation; all other settings are left out."""
    home = DRAFTERS[name]
    kept = {*drafting_module._NOT_SETTABLE, "model", "bridge"}
    for field in fields(getattr(import_module(home.module), home.kind)):
        words = set(re.findall(r"\w+", str(field.type)))
        is_literal = words <= {"int", "float", "bool", "str", "tuple", "None"}
        assert is_literal == (field.name not in kept), field.name

    assert set(DRAFTER_NAMES) == {"auto", "none", *DRAFTERS}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("magic", ["no 'magic'", "auto, none, forced-tokens"]),
        ("none:a=1", ["no 'a'", "no settings"]),
        ("auto:budget=3", ["no 'budget'", "no settings"]),
        ("prompt-lookup:shape=3", ["no 'shape'", "places, shortest, values"]),
        ("token-recycling:store=3", ["no 'store'", "no settings"]),
        ("prompt-lookup:places", ["KEY=VALUE", "'places'"]),
        ("prompt-lookup:places=0", ["places must be"]),
        ("layer-skip", ["needs skipped", "layer-skip:skipped=VALUE"]),
        ("layer-skip:skipped=(1,1)", ["different layers"]),
        ("draft-model", ["needs a model", "draft-model:model=M"]),
        ("draft-model:model=M,bridge=toll", ["no 'toll'", "match, intersection, rejection"]),
        ("draft-model:model=M,shape=3", ["no 'shape'", "draws"]),
    ],
)
def test_unusable_drafters(run: Command, program: str, text: str, words: list[str]) -> None:
    for arguments, file in (((), None), (("--arg", "text=x"), f"{program}:name")):
        status, out, err = run(*arguments, "--drafter", text, file=file)
        assert (status, out) == (2, "")
        assert all(word in err for word in words), err


def test_canvases_refuse_drafters(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canvas_module, "diffusion_model_of", pytest.fail)
    status, out, err = run("--decoder", "diffusion", "--drafter", "auto")
    assert (status, out) == (2, "")
    assert "--drafter is not for --decoder diffusion" in err
    assert "--policy freedave" in err


def test_weights_are_the_same_with_and_without_drafts(run: Command) -> None:
    pattern = ("--sampler", "smc", "-n", "3", "--weights", "--json")
    plain, drafted = (json.loads(run(*pattern, "--drafter", name)[1]) for name in ("none", "draft-model:model=M"))
    assert drafted["samples"] == plain["samples"]
    assert drafted["log_evidence"] == plain["log_evidence"]
    assert drafted["forwards"] < plain["forwards"]
    assert (plain["drafts"], drafted["drafts"]["passes"] > 0) == (None, True)
    _, _, err = run("--sampler", "smc", "-n", "3", "--weights", "--drafter", "draft-model:model=M")
    assert re.search(r" forward passes, \d+ of \d+ drafted tokens accepted", err)


def test_programs_take_a_drafter_in_place_of_their_own(run: Command, program: str) -> None:
    def drafts(name: str, *arguments: str) -> Any:
        status, out, err = run("--arg", f"text={PROMPT}", "--json", *arguments, file=f"{program}:{name}")
        assert status == 0, err
        return json.loads(out)["stats"]["drafts"]

    assert drafts("name") is not None
    assert drafts("name", "--drafter", "none") is None
    assert drafts("plain") is None
    assert drafts("plain", "--drafter", "auto") is not None
    assert set(drafts("plain", "--drafter", "draft-model:model=M")["sources"]) == {"draft model hash"}


def test_the_page_of_a_program_shows_its_drafts(
    run: Command, program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"
    pattern = ("--arg", f"text={PROMPT}", "--trace", str(trace))

    def page(*arguments: str) -> str:
        assert run(*pattern, *arguments, file=f"{program}:plain")[0] == 0
        assert main(["trace", str(trace)]) == 0
        return capsys.readouterr().out

    shown = page("--drafter", "draft-model:model=M")
    stats = json.loads(trace.read_text())["answers"][0]["stats"]
    drafts = stats["drafts"]
    found = re.search(
        r"^  drafts: (\d+) passes looked ahead, ([\d.]+) tokens a pass; about ([\d.]+) s (saved|lost)$",
        shown,
        re.MULTILINE,
    )
    assert found is not None
    assert int(found[1]) == drafts["passes"] > 0
    assert float(found[2]) == round(stats["tokens"] / stats["forwards"], 2)
    assert float(found[3]) == round(abs(drafts["saved_s"]), 3)
    assert (found[4] == "saved") == (drafts["saved_s"] >= 0)
    assert re.findall(r"^    draft model hash +(\d+) of +(\d+) accepted$", shown, re.MULTILINE) == [
        (str(stats["accepted"]), str(stats["drafted"]))
    ]
    lengths = re.findall(r"^ +(\d+) taken +(\d+) times  (#+)$", shown, re.MULTILINE)
    assert {length: int(count) for length, count, _ in lengths} == drafts["lengths"]
    most = max(drafts["lengths"].values())
    assert all(len(bar) == max(round(40 * int(count) / most), 1) for _, count, bar in lengths)
    assert "drafts:" not in page()


def test_traces_without_drafts_are_shown(
    run: Command, program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Traces from versions without drafts are shown."""
    trace = tmp_path / "trace.json"
    run("--arg", f"text={PROMPT}", "--trace", str(trace), file=f"{program}:plain")
    held = json.loads(trace.read_text())
    del held["answers"][0]["stats"]["drafts"]
    trace.write_text(json.dumps(held))
    assert main(["trace", str(trace)]) == 0
    assert "forward passes" in capsys.readouterr().out
