"""The Python blocks of the pages that no test of a single subject runs."""

from __future__ import annotations

import re

import pytest
from docs_run import CHECKOUT, run_page, stand_in

import structgen
import structgen.models
import structgen.program.definition as home
from structgen.engine import Vocabulary
from structgen.models import HashModel
from structgen.models.diffusion import HashDiffusion


@pytest.fixture
def stand_ins(json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> Vocabulary:
    """Hash models, where a page loads the embedded models."""
    model = HashModel(json_vocabulary, seed=5)
    tokens = [*json_vocabulary.tokens, b""]
    masked = Vocabulary(tokens, eos=list(json_vocabulary.eos), special={len(tokens) - 1: "<mask>"})
    stand_in(monkeypatch, model)
    monkeypatch.setattr(structgen, "load_diffusion_model", lambda *_, **__: HashDiffusion(masked), raising=False)
    return json_vocabulary


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "guides/batch.md",
        "guides/load-model.md",
        "guides/own-model.md",
        "guides/shared-passes.md",
        "guides/refused-token.md",
        "ideas/budgets.md",
        "ideas/masks.md",
        "ideas/targets.md",
        "index.md",
        "reference/errors.md",
        "start/five-minutes.md",
        "start/install.md",
        "start/notebooks.md",
        "reference/algebra.md",
        "guides/checking.md",
        "start/coming-from.md",
        "reference/conversion.md",
        "reference/gbnf.md",
        "guides/gpu.md",
        "reference/grammar-ir.md",
        "reference/indentation.md",
        "guides/infilling.md",
        "reference/json-schema.md",
        "reference/lark.md",
        "reference/lexing.md",
        "reference/library.md",
        "reference/limits.md",
        "reference/lints.md",
        "reference/models.md",
        "reference/protocols.md",
        "reference/regex.md",
        "reference/structural-tags.md",
        "reference/types.md",
    ],
)
def test_pages_run(page: str, stand_ins: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block runs by itself, from the top of the checkout."""
    monkeypatch.chdir(CHECKOUT)
    assert run_page(page).blocks


@pytest.mark.model
def test_readme_on_the_embedded_model(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The output of the README's examples has the shape that is shown; the model is loaded once for all of them."""
    model = structgen.models.load_model()
    monkeypatch.setattr(structgen, "load_model", lambda: model, raising=False)
    monkeypatch.setattr(home, "_default", [model])
    assert run_page("README.md").blocks == 3
    shown = r"product='.*' stars=[1-5] mood='(happy|angry|bored)'\n"
    shown += r"\{'city': '.*', 'population': \d+\}\n\d+ forward passes for \d+ tokens\n"
    shown += r"(open|closed)( since \d{4}-\d\d-\d\d)? \{'state': '(open|closed)'\}\n"
    assert re.fullmatch(shown, capsys.readouterr().out)
