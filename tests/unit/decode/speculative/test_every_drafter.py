"""Every drafter with several settings changes no token and no score of any output.

Where tokens are chosen, not sampled, this holds for every sampler and seed; ``test_sampled_drafts`` is about the
others.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from drafter_catalogue import CASES, LAYERED, DrafterCase
from drafting_prompts import GRAMMARS, PROMPTS, WRITES, together
from result_equality import assert_alike

from structgen.decode import Greedy, Multinomial, Result, Sampler, generate
from structgen.decode.speculative.drafter import Drafter
from structgen.decode.speculative.speculation import AnyDrafter, Speculation
from structgen.engine import Constraint, Vocabulary, compile
from structgen.models.protocol import LanguageModel
from structgen.models.toy.hash import HashModel

SAMPLERS: tuple[Sampler, ...] = (Multinomial(), Multinomial(0.7, top_k=20, top_p=0.9), Multinomial(1.5, min_p=0.01))
TITLES = {case.title: case for case in CASES}
NAMES = tuple(GRAMMARS)


@pytest.fixture(scope="module")
def constraints(json_vocabulary: Vocabulary) -> dict[str, Constraint]:
    return {name: compile(grammar, json_vocabulary) for name, grammar in GRAMMARS.items()}


@pytest.fixture(autouse=True)
def no_drafter_fails() -> Any:
    """Turn warnings into errors: a drafter that fails is dropped, and nothing would be tested."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def sampler_of(case: DrafterCase, number: int) -> Sampler:
    """A sampler that draws, every other time; not for drafters that draw themselves."""
    return Greedy() if case.draws or number % 2 == 0 else SAMPLERS[number // 2 % len(SAMPLERS)]


def outputs(
    model: LanguageModel, drafter: AnyDrafter, constraint: Constraint, prompt: str, options: dict[str, Any]
) -> tuple[Result, Result]:
    plain = generate(model, prompt, constraint, drafter=None, **options)
    return plain, generate(model, prompt, constraint, drafter=drafter, **options)


def check(
    case: DrafterCase, constraints: dict[str, Constraint], jobs: Iterable[tuple[int, str, str, str | None]]
) -> int:
    """Compare many outputs of one drafter, so that it learns; return the number of its draft tokens."""
    drafter: AnyDrafter = None
    draft_tokens = 0
    for number, name, prompt, writes in jobs:
        constraint = constraints[name]
        model = HashModel(constraint.vocabulary, seed=number, writes=writes)
        if drafter is None or "model" in case.title:  # for a draft model, each target has its own
            drafter = case.make(model)
        options: dict[str, Any] = {
            "max_tokens": max(12 + number % 12, constraint.min_tokens()),
            "seed": number,
            "sampler": sampler_of(case, number),
            "score_ending": number % 3 == 0,
        }
        plain, drafted = outputs(model, drafter, constraint, prompt, options)
        assert_alike(plain, drafted)
        assert drafted.stats.forwards <= plain.stats.forwards
        draft_tokens += drafted.stats.drafted
    return draft_tokens


@pytest.mark.parametrize("title", TITLES)
def test_outputs_are_the_same(constraints: dict[str, Constraint], title: str) -> None:
    """This holds with each grammar, alternately for a random model and for one with preferences."""
    case = TITLES[title]
    first = len(NAMES) * list(TITLES).index(title)
    jobs = [
        (first + at, name, PROMPTS[(first + at) % len(PROMPTS)], WRITES[name] if (first + at) % 2 else None)
        for at, name in enumerate(NAMES)
    ]
    draft_tokens = check(case, constraints, jobs)
    assert draft_tokens or not case.drafts


def test_no_prompt_is_left_out() -> None:
    """There are fifty prompts, and the drafters above use all of them."""
    assert len(set(PROMPTS)) == 50
    assert len(NAMES) * len(TITLES) > len(PROMPTS)


@pytest.mark.nightly
@pytest.mark.parametrize("title", TITLES)
def test_outputs_are_the_same_for_every_prompt(constraints: dict[str, Constraint], title: str) -> None:
    """All prompts, grammars, and models with and without preferences are combined."""
    jobs = [
        (number, name, prompt, writes)
        for number, prompt in enumerate(PROMPTS)
        for name in NAMES
        for writes in (None, WRITES[name])
    ]
    check(TITLES[title], constraints, jobs)


@pytest.mark.exhaustive
@pytest.mark.timeout(120)
@pytest.mark.parametrize("title", TITLES)
def test_outputs_in_one_batch_are_the_same(json_vocabulary: Vocabulary, constraints: Any, title: str) -> None:
    """Four outputs share one drafter and their passes."""
    check_batch(TITLES[title], constraints, HashModel(json_vocabulary, seed=5), 4 * list(TITLES).index(title))


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("title", TITLES)
def test_outputs_in_batches_are_the_same(json_vocabulary: Vocabulary, constraints: Any, title: str) -> None:
    """All prompts run four at a time."""
    for first in range(0, 5 * len(PROMPTS), 4):
        check_batch(TITLES[title], constraints, HashModel(json_vocabulary, seed=first, writes=WRITES["record"]), first)


def check_batch(case: DrafterCase, constraints: dict[str, Constraint], model: LanguageModel, first: int) -> None:
    drafter = case.make(model)
    jobs = []
    for number in range(first, first + 4):
        constraint = constraints[NAMES[number % len(NAMES)]]
        most = max(24, constraint.min_tokens())
        options: dict[str, Any] = {"max_tokens": most, "seed": number, "sampler": sampler_of(case, number)}
        jobs.append((PROMPTS[number % len(PROMPTS)], constraint, options))
    plain = [generate(model, prompt, constraint, drafter=None, **each) for prompt, constraint, each in jobs]
    drafted = together(
        model,
        [
            partial(generate, prompt=prompt, grammar=constraint, drafter=drafter, **each)
            for prompt, constraint, each in jobs
        ],
    )
    for one, other in zip(plain, drafted, strict=True):
        assert_alike(one, other, tolerance=0.0 if isinstance(model, HashModel) else 1e-4)
        assert other.stats.forwards <= one.stats.forwards


# The same for a network, whose rows depend in the last bits on the other rows of a pass.


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch = pytest.importorskip("torch")
    from layered_llama import write_llama

    from structgen.models.llama.model import LlamaModel

    folder = write_llama(tmp_path_factory.mktemp("llama") / "four", layers=4, deeper=0.6)
    return LlamaModel(folder, name="four", device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="module")
def of_llama(llama: Any) -> dict[str, Constraint]:
    return {name: compile(grammar, llama.vocabulary) for name, grammar in GRAMMARS.items()}


NETWORK_CASES = {case.title: case for case in (*LAYERED, *CASES)}
CHECKED = (
    *(case.title for case in LAYERED),
    *("auto", "draft model, dyspec", "another draft model, fixed", "lookahead", "exact string match", "pearl"),
)


@pytest.mark.exhaustive
@pytest.mark.parametrize("title", CHECKED)
def test_outputs_of_a_network_are_the_same(llama: Any, of_llama: dict[str, Constraint], title: str) -> None:
    """This holds with each grammar, with one drafter for all."""
    check_network(NETWORK_CASES[title], llama, of_llama, range(5))


@pytest.mark.nightly
@pytest.mark.parametrize("title", NETWORK_CASES)
def test_all_outputs_of_a_network_are_the_same(llama: Any, of_llama: dict[str, Constraint], title: str) -> None:
    """This holds for all drafters, prompts and grammars."""
    check_network(NETWORK_CASES[title], llama, of_llama, range(5 * len(PROMPTS)))


@pytest.mark.exhaustive
@pytest.mark.parametrize("title", ["auto", "draft model, dyspec", "lookahead", "bandit, exp3"])
def test_outputs_of_a_network_in_one_batch_are_the_same(llama: Any, of_llama: Any, title: str) -> None:
    """Trees of four outputs share one pass."""
    check_batch(NETWORK_CASES[title], of_llama, llama, 3)


def check_network(case: DrafterCase, llama: Any, constraints: dict[str, Constraint], numbers: range) -> None:
    drafter = case.make(llama)
    draft_tokens = 0
    for number in numbers:
        constraint = constraints[NAMES[number % len(NAMES)]]
        most = max(16, constraint.min_tokens() + 4)
        options = {"max_tokens": most, "seed": number, "sampler": sampler_of(case, number), "score_ending": True}
        plain, drafted = outputs(llama, drafter, constraint, PROMPTS[7 * number % len(PROMPTS)], options)
        assert_alike(plain, drafted, tolerance=1e-3)
        draft_tokens += drafted.stats.drafted
    assert draft_tokens


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["medusa", "hydra", "eagle"])
def test_outputs_with_trained_heads_are_the_same(llama: Any, of_llama: Any, kind: str, tmp_path: Path) -> None:
    """Heads with random weights draft badly, and outputs are still the same."""
    import json

    from draft_head_training import config, new_weights
    from safetensors.torch import save_file

    from structgen.methods.drafters.heads.trained_heads import TrainedHeads, load_heads

    (tmp_path / "config.json").write_text(json.dumps(config(kind, 3)))
    save_file(new_weights(kind, llama, heads=3), tmp_path / "model.safetensors")
    heads = load_heads(tmp_path, llama)
    check_network(DrafterCase(kind, lambda _: TrainedHeads(heads)), llama, of_llama, range(5))


def test_every_drafter_is_tried() -> None:
    """Each public drafter class is in the catalogue."""
    import importlib
    import pkgutil

    import structgen.decode.speculative as core
    from structgen import methods

    for package in (core, methods):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    homes = (core.__name__, methods.__name__)
    public = {each.__name__ for each in Drafter.__subclasses__() if each.__module__.startswith(homes)}
    model: Any = HashModel(Vocabulary([b"", b"a"], eos=[0]))
    found: set[str] = set()
    for case in (*CASES, *LAYERED):
        drafter = case.make(model)
        if isinstance(drafter, Speculation):
            drafter = drafter.drafter
        if isinstance(drafter, Drafter):
            found.add(type(drafter).__name__)
    assert public - found == {"TrainedHeads"}  # other tests cover them
