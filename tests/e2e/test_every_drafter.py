"""Every drafter on the embedded model: greedy outputs equal those without drafts, alone and four in a batch."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from drafter_catalogue import CASES, LAYERED
from drafting_prompts import GRAMMARS, PROMPTS, together
from result_equality import assert_alike

from structgen.decode import Greedy, Multinomial, generate
from structgen.engine import Constraint, compile
from structgen.models import LanguageModel, load_model

pytestmark = [pytest.mark.model, pytest.mark.nightly, pytest.mark.timeout(1800)]

TITLES = {case.title: case for case in (*LAYERED, *CASES)}
NAMES = tuple(GRAMMARS)
ROUNDING = 1e-3


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return load_model(device="cpu", runtime="torch", threads=1)


@pytest.fixture(scope="module")
def constraints(model: LanguageModel) -> dict[str, Constraint]:
    return {name: compile(grammar, model.vocabulary) for name, grammar in GRAMMARS.items()}


@pytest.fixture(autouse=True)
def no_drafter_fails() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("title", TITLES)
def test_outputs_are_the_same(model: LanguageModel, constraints: dict[str, Constraint], title: str) -> None:
    """One drafter changes no output of any grammar; sampled outputs are compared where the drafter does not sample."""
    case = TITLES[title]
    drafter = case.make(model)
    first = len(NAMES) * list(TITLES).index(title)
    for at, name in enumerate(NAMES):
        prompt = PROMPTS[(first + at) % len(PROMPTS)]
        sampler = Greedy() if case.draws or at % 2 == 0 else Multinomial(0.7)
        most = max(30, constraints[name].min_tokens())
        options: dict[str, Any] = {"max_tokens": most, "sampler": sampler, "seed": at}
        plain = generate(model, prompt, constraints[name], drafter=None, **options)
        drafted = generate(model, prompt, constraints[name], drafter=drafter, **options)
        assert_alike(plain, drafted, tolerance=ROUNDING)
        assert drafted.stats.forwards <= plain.stats.forwards


@pytest.mark.parametrize("name", NAMES)
def test_outputs_of_every_prompt_are_the_same(
    model: LanguageModel, constraints: dict[str, Constraint], name: str
) -> None:
    """The default drafter of ``generate`` changes no output, for one output after the other."""
    most = max(30, constraints[name].min_tokens())
    for prompt in PROMPTS:
        plain = generate(model, prompt, constraints[name], max_tokens=most, drafter=None)
        assert_alike(plain, generate(model, prompt, constraints[name], max_tokens=most), tolerance=ROUNDING)


@pytest.mark.parametrize("title", ["auto", "combined", "another draft model, dyspec", "lookahead"])
def test_outputs_in_one_batch_are_the_same(
    model: LanguageModel, constraints: dict[str, Constraint], title: str
) -> None:
    """One drafter changes no output of a batch of four."""
    drafter = TITLES[title].make(model)
    for first in range(0, 20, 4):
        jobs = []
        for number in range(first, first + 4):
            constraint = constraints[NAMES[number % len(NAMES)]]
            options: dict[str, Any] = {"max_tokens": max(30, constraint.min_tokens()), "seed": number}
            jobs.append((PROMPTS[number], constraint, options))
        plain = [generate(model, prompt, constraint, drafter=None, **each) for prompt, constraint, each in jobs]
        drafted = together(
            model,
            [
                partial(generate, prompt=prompt, grammar=constraint, drafter=drafter, **each)
                for prompt, constraint, each in jobs
            ],
        )
        for one, other in zip(plain, drafted, strict=True):
            assert_alike(one, other, tolerance=ROUNDING)
