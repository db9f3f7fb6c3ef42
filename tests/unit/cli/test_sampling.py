"""``structgen run --sampler`` and ``--weights`` on a model without weights."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from exact_target import exact_target, log_total, normalised

from structgen.cli import run as run_module
from structgen.cli.main import main
from structgen.engine import Vocabulary
from structgen.models import HashModel

VOCABULARY = Vocabulary([b"", b"a", b"b", b"ab", b"c"], eos=[0])
MODEL = HashModel(VOCABULARY, seed=3)
PATTERN = "(a|b){2,3}"
POTENTIALS = """
def even(text):
    return len(text) % 2 == 0

def broken(text):
    raise KeyError("x")

nothing = 3
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setattr(run_module, "model_of", lambda name, progress, **_: MODEL)

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(["run", "--regex", PATTERN, "--prompt", "ab", "--max-tokens", "3", *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture
def potentials(tmp_path: Path) -> str:
    path = tmp_path / "rules.py"
    path.write_text(POTENTIALS)
    return str(path)


@pytest.mark.parametrize(
    "name",
    [
        *("greedy", "multinomial", "awrs", "smc", "bestof", "beam", "asap", "rejection", "exact", "cautious"),
        *("adadec:threshold=0.5", "foresight", "firstfinish", "momentum", "lookback", "bregman:alpha=2"),
    ],
)
def test_every_sampler_writes_a_member(run: Any, name: str) -> None:
    status, out, err = run("--sampler", name)
    assert status == 0
    assert re.fullmatch(PATTERN, out.strip())
    assert "forward pass" in err


def test_a_cut_output_is_reported(run: Any) -> None:
    """JSON says where the budget decided, and standard error warns; without a cut it is silent."""
    cut, whole = run("--regex", "a{2,9}", "--json"), run("--regex", "a{2}", "--json")
    found = json.loads(cut[1])
    assert found["finish_reason"] == "length"
    assert found["cut_byte"] == len(found["text"][: found["cut_at"]])
    assert re.search(r", cut by the budget\nwarning: the .* may differ .* raise --max-tokens\n$", cut[2])
    assert json.loads(whole[1])["finish_reason"] == "stop"
    assert json.loads(whole[1])["cut_at"] is None
    assert "warning" not in whole[2]


def test_weights_are_those_of_the_target(run: Any) -> None:
    target = exact_target(MODEL, "ab", PATTERN, 3)
    status, out, err = run("--sampler", "smc", "-n", "4000", "--weights", "--json")
    found = json.loads(out)
    assert status == 0
    assert found["lossless"] is True
    assert found["particles"] == 4000
    assert abs(found["log_evidence"] - log_total(target)) < 6 * found["standard_error"]
    assert sum(each["weight"] for each in found["samples"]) == pytest.approx(1)
    distribution = normalised(target)
    for each in found["samples"]:
        assert abs(each["weight"] - distribution[tuple(each["tokens"])]) < 0.05
    assert "4000 particles" in err


@pytest.mark.parametrize("name", ["smc", "bestof", "beam", "asap", "rejection", "exact", "firstfinish"])
def test_costs_are_told_of_every_sampler(run: Any, name: str) -> None:
    found = json.loads(run("--sampler", name, "--weights", "--json")[1])
    assert all(found[cost] > 0 for cost in ("forwards", "sampled_tokens", "masks", "particles"))


@pytest.mark.parametrize("name", ["multinomial", "awrs"])
def test_samplers_of_tokens_have_weights_too(run: Any, name: str) -> None:
    """By importance sampling: with one output its weight is the evidence."""
    one = json.loads(run("--sampler", name, "--weights", "--json")[1])
    assert one["samples"][0]["log_weight"] == one["log_evidence"]
    many = json.loads(run("--sampler", name, "-n", "2000", "--weights", "--json")[1])
    log_z = log_total(exact_target(MODEL, "ab", PATTERN, 3))
    assert (many["lossless"], many["particles"]) == (True, 2000)
    assert abs(many["log_evidence"] - log_z) < 6 * many["standard_error"]
    for lossy in ("greedy", "multinomial:temperature=0.5"):
        status, _, err = run("--sampler", lossy, "--weights")
        assert status == 2
        assert "--weights needs outputs with weights" in err
    status, _, err = run("--weights", "--temperature", "0.5")
    assert status == 2
    assert "leave out --temperature" in err


def test_weights_as_text(run: Any) -> None:
    status, out, _ = run("--weights", "-n", "8")
    *lines, last = out.splitlines()
    assert status == 0
    assert sum(float(line.split("  ")[0]) for line in lines) == pytest.approx(1, abs=1e-3 * len(lines))
    assert all(re.fullmatch(PATTERN, line.split("  ")[1]) for line in lines)
    assert re.fullmatch(r"log evidence -\d+\.\d+ ± \d+\.\d+, effective sample size \d+\.\d of 8", last)
    assert run("--weights", "-n", "8")[1] == out
    assert run("--weights", "-n", "8", "--seed", "5")[1] != out


def test_settings_reach_the_sampler(run: Any, tmp_path: Path) -> None:
    trace = str(tmp_path / "run.json")
    status, _, _ = run("--sampler", "smc:ess_threshold=1,resampling=residual", "--weights", "--trace", trace)
    assert status == 0
    held = json.loads(Path(trace).read_text())
    assert "ess_threshold=1" in held["sampler"]
    assert "residual" in held["sampler"]
    assert all(each["resampled"] for each in held["rounds"][:-2] if each["ess"] < 15.9)


def test_the_picture_of_a_run(run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = str(tmp_path / "run.json")
    run("--sampler", "smc", "--weights", "--trace", trace)
    held = json.loads(Path(trace).read_text())
    assert main(["trace", trace]) == 0
    page = capsys.readouterr().out
    rows = re.findall(r"^ +(\d+) +(\d+) +(\d+) +(\d+) +(\S+)  (#+) +(\S+)", page, re.MULTILINE)
    assert len(rows) == len(held["rounds"])
    for row, each in zip(rows, held["rounds"], strict=True):
        assert (int(row[1]), int(row[2]), int(row[3])) == (each["live"], each["finished"], each["distinct"])
        assert len(row[5]) == round(40 * each["ess"] / 16)
    assert f"log evidence {held['log_evidence']:.4f}" in page


def test_potentials_of_a_file(run: Any, potentials: str) -> None:
    for sampler in ("greedy", "multinomial", "smc", "rejection"):
        status, out, _ = run("--sampler", sampler, "--potential", f"{potentials}:even")
        assert status == 0
        assert len(out.strip()) == 2
    status, out, err = run("--sampler", "smc", "--weights", "--potential", f"{potentials}:even")
    assert status == 0
    assert "even forbade" in err
    target = exact_target(MODEL, "ab", PATTERN, 3, lambda text: 0.0 if len(text) % 2 == 0 else -math.inf)
    assert set(re.findall(r"^\S+  (\w+)$", out, re.MULTILINE)) <= {VOCABULARY.decode(key).decode() for key in target}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sampler", "mcmc"], ["'mcmc'", "smc, bestof"]),
        (["--sampler", "smc:size=3"], ["no 'size'", "particles, ess_threshold"]),
        (["--sampler", "smc:particles"], ["KEY=VALUE", "'particles'"]),
        (["--sampler", "smc:particles=0"], ["particles must be"]),
        (["--sampler", "smc:particles=4", "-n", "4"], ["particles is what -n says"]),
        (["--sampler", "smc", "--temperature", "0.5"], ["multinomial:temperature"]),
        (["--sampler", "greedy", "--weights"], ["--weights needs", "greedy"]),
        (["--trace", "x"], ["--weights"]),
        (["--potential", "rules.txt:even"], ["FILE.py:NAME"]),
        (["--potential", "missing.py:even"], ["missing.py"]),
    ],
)
def test_unusable_options(run: Any, arguments: list[str], words: list[str]) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert all(word in err for word in words)


def test_potentials_that_fail(run: Any, potentials: str) -> None:
    assert run("--potential", f"{potentials}:absent")[0] == 2
    status, _, err = run("--potential", f"{potentials}:nothing")
    assert status == 2
    assert "found int" in err
    status, out, err = run("--sampler", "smc", "--potential", f"{potentials}:broken")
    assert (status, out) == (1, "")
    assert "potential broken: complete raised KeyError" in err


def test_all_weights_zero(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "no.py"
    path.write_text("def never(text):\n    return False\n")
    status, out, err = run("--sampler", "smc", "--potential", f"{path}:never")
    assert (status, out) == (1, "")
    assert "all 16 weights are zero; never forbade" in err
    status, out, err = run("--weights", "--potential", f"{path}:never")
    assert status == 0
    assert out == "log evidence -inf, effective sample size 0.0 of 16\n"


def test_canonical_outputs(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``--canonical`` the tokens are the tokenizer's; other tokenizers, canvases and servers are refused."""
    from split_tokenizers import split_tokenizer, split_vocabulary

    status, _, err = run("--canonical")
    assert status == 2
    assert "it has no tokenizer" in err
    for others in (["--decoder", "diffusion"], ["--model", "http://localhost:1/v1#m"]):
        status, _, err = run("--canonical", *others)
        assert status == 2
        assert "--canonical is not for" in err
    model = HashModel(split_vocabulary("gpt2"), seed=2)
    monkeypatch.setattr(run_module, "model_of", lambda name, progress, **_: model)
    written = []
    for options in (["--canonical"], []):
        found = json.loads(run("--regex", "(ab|a|b| ){4}", "--max-tokens", "8", "--weights", "--json", *options)[1])
        encode = split_tokenizer("gpt2").encode
        written.append(all(encode(one["text"]).ids == one["tokens"] for one in found["samples"]))
    assert written == [True, False]
    found = json.loads(run("--regex", "(ab|a|b| ){4}", "--max-tokens", "8", "--json", "--canonical")[1])
    assert model.vocabulary.tokenize(found["text"]) == encode(found["text"]).ids
