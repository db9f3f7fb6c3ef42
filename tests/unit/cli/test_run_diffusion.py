"""``structgen run --decoder diffusion`` on a model without weights."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from structgen.cli import run_canvas as canvas_module
from structgen.cli.main import main
from structgen.cli.terminal import CanvasScreen
from structgen.decode.diffusion.canvas_run import Snapshot
from structgen.decode.diffusion.mean_field import FREE
from structgen.engine import Vocabulary
from structgen.methods.catalogue import CANVAS_SAMPLERS, COMMIT_POLICIES, REUSES
from structgen.models.diffusion import HashDiffusion

EOS, MASK = 0, 261
PIECES = [b"", *(bytes([byte]) for byte in range(256)), b'{"', b'":"', b'","', b'":', b""]
VOCABULARY = Vocabulary(PIECES, eos=[EOS], special={MASK: "<mask>"})
ADA = '{"name":"Ada","age":36}'
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "maximum": 120, "minimum": 0},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROGRAM = """
import structgen as sg
from typing import Literal
from pydantic import BaseModel, Field

class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)

@sg.program
def who(text: str):
    yield text
    person = yield Person
    sure = yield Literal["yes", "no"]
    return person, sure

@sg.program
def greedy(text: str):
    yield text
    yield sg.program.ask(Person, sampler=sg.Greedy())
"""

Outcome = tuple[int, str, str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Outcome]:
    """Run the command on a model that prefers Ada's record; FILE is a schema by default."""
    monkeypatch.setattr(canvas_module, "diffusion_model_of", lambda *_, **__: HashDiffusion(VOCABULARY, writes=ADA))
    schema = tmp_path / "person.json"
    schema.write_text(json.dumps(PERSON))

    def call(*arguments: str, file: str | None = None) -> Outcome:
        status = main(["run", file or str(schema), "--decoder", "diffusion", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "people.py"
    path.write_text(PROGRAM)
    return str(path)


def _fails(outcome: Outcome, *words: str, status: int = 2) -> None:
    found, out, err = outcome
    assert found == status, err
    assert out == ""
    for word in words:
        assert word in err


def test_standard_output_holds_the_output_alone(run: Callable[..., Outcome]) -> None:
    status, out, err = run()
    assert (status, out) == (0, ADA + "\n")
    assert re.search(r"^\d+ tokens on \d+ slots in [\d.]+ s: \d+ forced, \d+ forward passes$", err, re.MULTILINE)


def test_white_space_is_none_unless_it_is_asked_for(run: Callable[..., Outcome]) -> None:
    """Other decoders write a space here; on a canvas it would take slots."""
    assert run()[1] == ADA + "\n"
    status, out, _ = run("--whitespace", "single")
    assert status == 0
    assert out == json.dumps(json.loads(out)) + "\n"
    assert '": ' in out


def test_json_tells_how_the_canvas_was_filled(run: Callable[..., Outcome]) -> None:
    status, out, _ = run("--json", "--canvas", "24", "--policy", "static:per_step=8", "--block", "12", "--seed", "7")
    held = json.loads(out)
    assert status == 0
    assert (held["text"], held["value"], held["seed"]) == (ADA, {"name": "Ada", "age": 36}, 7)
    canvas = held["canvas"]
    assert canvas["slots"] == 24
    slots = [slot for commit in canvas["commits"] for slot in commit]
    assert sorted(slots) == list(range(24))
    assert set(canvas["forced"]) <= set(slots)
    assert held["stats"]["forwards"] <= len(canvas["commits"])


def test_several_outputs_are_drawn(run: Callable[..., Outcome]) -> None:
    """``-n`` and ``--temperature`` sample with consecutive seeds; equal seeds give equal outputs."""
    pattern = ("--temperature", "3", "-n", "4", "--seed", "5", "--json")
    status, out, _ = run(*pattern)
    lines = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert [line["seed"] for line in lines] == [5, 6, 7, 8]
    assert len({line["text"] for line in lines}) > 1
    again = [json.loads(line)["text"] for line in run(*pattern)[1].splitlines()]
    assert again == [line["text"] for line in lines]
    assert run("-n", "2", "--sampler", "dingo")[1] == 2 * (ADA + "\n")
    assert run("--temperature", "0")[1] == ADA + "\n"


@pytest.mark.parametrize("name", [name for name in COMMIT_POLICIES if name != "learned"])
def test_every_policy_writes_a_member(run: Callable[..., Outcome], name: str) -> None:
    status, out, err = run("--policy", name, "--canvas", "24")
    assert status == 0, err
    assert set(json.loads(out)) == {"name", "age"}


@pytest.mark.parametrize("name", list(REUSES))
def test_every_rule_of_reuse_writes_a_member(run: Callable[..., Outcome], name: str) -> None:
    status, out, err = run("--reuse", name, "--canvas", "24", "--block", "8")
    assert status == 0, err
    assert set(json.loads(out)) == {"name", "age"}


def test_the_learned_policy_has_the_filter_of_the_embedded_model(run: Callable[..., Outcome]) -> None:
    status, out, err = run("--policy", "learned:threshold=0.8")
    assert status == 0, err
    assert set(json.loads(out)) == {"name", "age"}
    _fails(run("--policy", "learned", "--model", "/other"), "was trained for the embedded diffusion model")


def test_settings_reach_the_policy(run: Callable[..., Outcome]) -> None:
    """With more slots per step there are fewer passes."""
    passes = [
        json.loads(run("--json", "--canvas", "24", "--policy", f"static:per_step={count}")[1])["stats"]["forwards"]
        for count in (1, 4, 24)
    ]
    assert passes[0] > passes[1] > passes[2] == 1


def test_smc_writes_one_output_or_all_with_weights(run: Callable[..., Outcome], tmp_path: Path) -> None:
    status, out, err = run("--sampler", "smc", "-n", "4", "--canvas", "20")
    assert (status, out) == (0, ADA + "\n"), err
    trace = tmp_path / "trace.json"
    status, out, err = run("--weights", "-n", "4", "--canvas", "20", "--json", "--trace", str(trace))
    held = json.loads(out)
    assert status == 0
    assert held["particles"] == 4
    assert sum(sample["weight"] for sample in held["samples"]) == pytest.approx(1)
    assert json.loads(trace.read_text())["rounds"]
    assert main(["trace", str(trace)]) == 0


def test_a_program_runs_unchanged(run: Callable[..., Outcome], program: str) -> None:
    status, out, err = run("--arg", "text=Ada", "--json", "--max-tokens", "40", file=f"{program}:who")
    held = json.loads(out)
    assert status == 0, err
    assert held["value"][0] == {"name": "Ada", "age": 36}
    assert held["value"][1] in ("yes", "no")
    assert held["stats"]["forwards"] >= 2
    _fails(
        run("--arg", "text=Ada", file=f"{program}:greedy"), "Greedy is a sampler of models that write token by token"
    )


def test_a_program_takes_the_options_of_canvases(run: Callable[..., Outcome], program: str, tmp_path: Path) -> None:
    """There is one replay for each answer; the policy holds for all of them."""
    page, trace = tmp_path / "replay.html", tmp_path / "trace.json"
    settings = ("--canvas", "24", "--policy", "static:per_step=24", "--replay", str(page), "--trace", str(trace))
    status, _, err = run("--arg", "text=Ada", *settings, file=f"{program}:who")
    assert status == 0, err
    assert re.search(r" 2 forward passes$", err, re.MULTILINE)
    assert page.read_text().count('<section class="replay"') == 2
    assert "<h2>answer 2</h2>" in page.read_text()
    assert len(json.loads(trace.read_text())["answers"]) == 2


def test_a_replay_is_written_for_each_output(run: Callable[..., Outcome], tmp_path: Path) -> None:
    page = tmp_path / "replay.html"
    assert run("--replay", str(page))[0] == 0
    assert page.read_text().count('<section class="replay"') == 1
    assert run("--replay", str(page), "-n", "3", "--seed", "4")[0] == 0
    assert re.findall("<h2>(.*)</h2>", page.read_text()) == ["seed 4", "seed 5", "seed 6"]


def test_a_stream_that_is_no_terminal_has_a_line_for_each_commit(run: Callable[..., Outcome]) -> None:
    """The lines are on standard error; standard output has the output once and whole."""
    status, out, err = run("--stream", "--canvas", "20")
    assert (status, out) == (0, ADA + "\n")
    lines = re.findall(r"^(\d+) forward pass(?:es)?, (\d+) of 20 slots: (.*)$", err, re.MULTILINE)
    filled = [int(count) for _, count, _ in lines]
    assert filled == sorted(filled)
    assert (filled[0], filled[-1]) == (0, 20)
    assert lines[0][2] == 20 * "█"
    assert lines[-1][2] == ADA + "∎"
    assert "\x1b" not in err


class _Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


def _snapshot(canvas: list[int], forwards: int, committed: list[int]) -> Snapshot:
    none = np.zeros(0, dtype=np.intp)
    return Snapshot(np.array(canvas, dtype=np.int32), np.array(committed, dtype=np.intp), forwards, none)


def _screen(monkeypatch: pytest.MonkeyPatch, *snapshots: Snapshot, columns: int = 40, lines: int = 10) -> list[str]:
    """What each snapshot writes on a terminal of this size."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(lines))
    terminal = _Terminal()
    screen = CanvasScreen(VOCABULARY, terminal)
    written = []
    for snapshot in snapshots:
        screen(snapshot)
        written.append(terminal.getvalue())
        terminal.seek(0)
        terminal.truncate()
    return written


def _token(text: str) -> int:
    return PIECES.index(text.encode())


def test_a_terminal_is_drawn_over_and_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """New tokens are highlighted; lines of an earlier step are overwritten, lines of another canvas are not."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    empty = _snapshot([FREE, FREE, FREE], 0, [])
    half = _snapshot([FREE, _token("b"), FREE], 1, [1])
    full = _snapshot([_token("a"), _token("b"), EOS], 2, [0, 2])
    first, second, third, next_canvas = _screen(monkeypatch, empty, half, full, empty)
    assert not re.search(r"\x1b\[\d+A", first)
    assert second.startswith("\x1b[2A\r\x1b[J")
    assert "\x1b[1;32mb\x1b[0m" in second
    assert "\x1b[1;32ma\x1b[0mb\x1b[1;32m∎\x1b[0m" in third
    assert "2 forward passes, 3 of 3 slots" in third
    assert not re.search(r"\x1b\[\d+A", next_canvas)


def test_colours_are_left_out_where_they_are_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """``NO_COLOR`` removes the colours and keeps the drawing."""
    monkeypatch.setenv("NO_COLOR", "1")
    (written,) = _screen(monkeypatch, _snapshot([_token("a"), FREE], 1, [0]))
    assert written == "\r\x1b[Ja█\n1 forward pass, 1 of 2 slots\n"


def test_nothing_that_tokens_hold_acts_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Escape sequences, line breaks and half characters are shown."""
    monkeypatch.setenv("NO_COLOR", "1")
    tokens = [1 + byte for byte in b"\x1b[2J\r\n\x07\xe2"]
    (written,) = _screen(monkeypatch, _snapshot([*tokens, MASK], 1, []), columns=60)
    assert written.split("\n")[0].endswith("\x1b[J␛[2J␍␊␇\\xe2⟨<mask>⟩")


def test_a_canvas_that_is_larger_than_the_terminal_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are as wide as the terminal, and never more than can be redrawn."""
    monkeypatch.setenv("NO_COLOR", "1")
    first, second = _screen(
        monkeypatch, _snapshot([_token("a")] * 100, 0, []), _snapshot([_token("b")] * 100, 1, []), columns=10, lines=6
    )
    assert first.splitlines()[-1] == "0 forward passes, 100 of 100 slots"
    drawn = first.removeprefix("\r\x1b[J").splitlines()
    assert len(drawn) <= 5
    assert all(len(line) <= 10 for line in drawn[:-1])
    assert drawn[-2] == "..."
    assert second.startswith(f"\x1b[{len(drawn)}A")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--top-k", "3"), ("--top-k is not for --decoder diffusion", "posterior")),
        (("--potential", "x.py:f"), ("--potential is not for",)),
        (("--canvas", "20", "--max-tokens", "20"), ("both say how many slots",)),
        (("--sampler", "greedy"), ("there is no 'greedy'; there are dingo, posterior, smc",)),
        (("--sampler", "posterior:tail=all"), ("tail must be 'free' or 'scored'",)),
        (("--sampler", "dingo", "--temperature", "0"), ("leave out --sampler",)),
        (("--temperature", "0", "-n", "2"), ("--temperature 0",)),
        (("--temperature", "-1"), ("temperature must be positive",)),
        (("--policy", "fastest"), ("--policy: there is no 'fastest'; there are static, threshold",)),
        (("--policy", "threshold:confidence=2"), ("--policy threshold", "at most 1")),
        (("--policy", "threshold:speed=2"), ("there is no 'speed'; there are confidence",)),
        (("--policy", "threshold:0.5"), ("expected KEY=VALUE; found '0.5'",)),
        (("--reuse", "all"), ("--reuse: there is no 'all'; there are prefix, dual, delayed",)),
        (("--sampler", "smc", "--policy", "factor"), ("--policy is not for smc",)),
        (("--sampler", "smc", "--replay", "x.html"), ("--replay is not for smc",)),
        (("--sampler", "smc:particles=3", "-n", "4"), ("particles is what -n says",)),
        (("--sampler", "posterior", "--weights"), ("--weights needs outputs with weights",)),
        (("--stream", "--json"), ("--stream",)),
        (("--arg", "a=b"), ("--arg is for programs",)),
        (("--trace", "x"), ("--trace is for programs",)),
        (("--canvas", "9"), ("canvas=9", "allow at least canvas=")),
        (("--max-tokens", "9"), ("max_tokens=9", "allow at least max_tokens=")),
    ],
)
def test_what_does_not_fit_is_refused(
    run: Callable[..., Outcome], arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    """Exit status 2, a message that names the option, and nothing on standard output."""
    _fails(run(*arguments), *words)


@pytest.mark.parametrize("option", ["canvas", "policy", "block", "reuse", "replay", "trust-remote-code"])
def test_options_of_canvases_are_refused_for_other_decoders(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str
) -> None:
    schema = tmp_path / "person.json"
    schema.write_text(json.dumps(PERSON))
    value = [] if option == "trust-remote-code" else ["3"]
    assert main(["run", str(schema), f"--{option}", *value]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"--{option} is not for --decoder autoregressive" in err


def test_programs_refuse_what_descriptions_take(run: Callable[..., Outcome], program: str) -> None:
    _fails(run("--prompt", "x", file=f"{program}:who"), "a program has its own prompt")
    _fails(run("--weights", file=f"{program}:who"), "--weights is for descriptions")


def test_ctrl_c_tells_what_stands_on_the_canvas(monkeypatch: pytest.MonkeyPatch, run: Callable[..., Outcome]) -> None:
    """The exit status is 130; bytes in tokens do not act on the terminal."""

    class Interrupted(HashDiffusion):
        def logits(self, *arguments: Any) -> Any:
            self.asked = getattr(self, "asked", 0) + 1
            if self.asked == 4:
                raise KeyboardInterrupt
            return super().logits(*arguments)

    monkeypatch.setattr(canvas_module, "diffusion_model_of", lambda *_, **__: Interrupted(VOCABULARY, writes=ADA))
    _fails(run("--canvas", "20"), "interrupted with", "of 20 slots free: {", status=130)


def test_every_name_has_a_class() -> None:
    """The tables name existing dataclasses, and no policy of the library is missing."""
    import importlib

    from structgen.decode.diffusion.commit_policy import CommitPolicy
    from structgen.methods import policies

    named = set()
    for home in (*COMMIT_POLICIES.values(), *REUSES.values(), *CANVAS_SAMPLERS.values()):
        named.add(getattr(importlib.import_module(home.module), home.kind))
    library = {
        kind
        for name in policies.__all__
        if isinstance(kind := getattr(policies, name), type) and hasattr(kind, "start")
    }
    assert library <= named
    assert all(isinstance(made(), CommitPolicy) for made in library if made.__name__ != "Learned")
