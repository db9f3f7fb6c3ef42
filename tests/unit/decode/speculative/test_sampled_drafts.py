"""Drafters that sample their tokens: outputs have the same distribution as without drafts.

Draws through the whole loop are compared with the exact distribution, which enumerates all outputs of a toy language
with separate sessions and Python's ``re``. If the distributions are right, the probability that any test here fails by
chance is at most 1e-6; the same tests find verifiers with the classic mistakes.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

import numpy as np
import pytest
from drafter_tasks import PlainModel, expected_distribution
from numpy.typing import NDArray
from toy_language import STOP, Prefix, ToyLanguage

from structgen.decode import Multinomial, generate
from structgen.decode.potentials import Potential
from structgen.decode.potentials.potential import Hypothesis
from structgen.decode.speculative.cost import CostModel
from structgen.decode.speculative.drafter import Drafter
from structgen.decode.speculative.drafters.auto import Combined
from structgen.decode.speculative.drafters.prompt_lookup import PromptLookup
from structgen.decode.speculative.drafters.token_recycling import TokenRecycling
from structgen.decode.speculative.speculation import AnyDrafter, Speculation
from structgen.decode.speculative.verifier import (
    IndependentRejection,
    RecursiveRejection,
    Verifier,
    acceptance,
    reject_recursively,
    residual,
)
from structgen.engine import Constraint, Vocabulary, compile
from structgen.frontends.regex import regex
from structgen.methods.drafters.draft_model import DraftModel, ShortContext
from structgen.methods.drafters.dynamic_exit import DynamicExit
from structgen.methods.drafters.layer_skip import Clasp, LayerSkip
from structgen.methods.drafters.lookahead import Extended
from structgen.methods.drafters.ngram_tables import Stand
from structgen.methods.drafters.string_rejection import StringRejection
from structgen.methods.drafters.token_bridge import TokenIntersection
from structgen.methods.tree_policies.dynamic_tree import IndependentDraws
from structgen.methods.verifiers.acceptance_rules import KSequential
from structgen.methods.verifiers.tree_verification import BlockVerification, ChainSampling
from structgen.models.toy.hash import HashModel
from structgen.shapes import Bandit, Chain, DySpec, Fixed, Goodput, Pearl, Sequoia

ALPHA: Final = 1e-6
_TESTS: Final = 100
"""More than there are here, and more than there are at night; each has a share of ``ALPHA``."""
_EXPECTED: Final = 5.0
"""Outcomes that are expected more seldom are counted together."""

VOCABULARY = Vocabulary([b"", b"a", b"b", b"c", b"ab", b"bc"], eos=[0])
OTHER = Vocabulary([b"", b"c", b"b", b"a", b"abc", b"ca", b"bc"], eos=[0])
PROMPT = "abcabcabc"
COST = CostModel(0.05)
SAMPLERS = {"plain": Multinomial(), "shaped": Multinomial(1.4, top_k=4, top_p=0.95)}


@dataclass(frozen=True)
class Language:
    """A language, and its maximal number of tokens."""

    pattern: str
    most: int
    vocabulary: Vocabulary = VOCABULARY

    def constraint(self) -> Constraint:
        return compile(regex(self.pattern), self.vocabulary)


LETTERS = Vocabulary([b"", b"a", b"b", b"c", b"d"], eos=[0])
LANGUAGES = {
    "letters": Language("(a|b|c){1,3}", 3),
    "a budget": Language("(a|b|c){1,9}|abcabc", 3),
    "forced tokens": Language("(a|b)cd(a|c)?|(c|d)(ab|bd)(cd|da)", 6, LETTERS),
}


@final
class Sharp(HashModel):
    """A sharper ``HashModel``: as a draft model it has some accepted and some rejected tokens."""

    def logits(self, state: int, matched: int) -> NDArray[np.float32]:
        return super().logits(state, matched) * np.float32(2.5)


@pytest.fixture(autouse=True)
def no_drafter_fails() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def exact_distribution(
    model: Any, language: Language, sampler: Multinomial, forbids: Callable[[Prefix], bool] = lambda _: False
) -> dict[Prefix, float]:
    """The distribution of outputs, from shaped next-token distributions.

    A forbidden token is resampled from the rest.
    """
    toy = ToyLanguage(model, PROMPT, language.pattern, language.most)

    def following(prefix: Prefix) -> Mapping[Prefix, float]:
        options = {token: p for token, p in toy.options(prefix).items() if not forbids((*prefix, token))}
        log_p = np.array(list(options.values()))
        weights = sampler.shaped(log_p - np.logaddexp.reduce(log_p))
        return {(token,): weight / weights.sum() for token, weight in zip(options, weights, strict=True)}

    return toy.distribution_of_outputs(following)


def excess(counts: Mapping[Prefix, int], distribution: Mapping[Prefix, float]) -> float:
    """Pearson's statistic, divided by a bound that it exceeds with probability at most ``ALPHA / _TESTS``.

    By Chernoff's inequality chi-squared with ``d`` degrees exceeds ``x > d`` with a probability of at most ``(x /
    d)**(d / 2) exp((d - x) / 2)``. Infinite where an impossible outcome occurred.
    """
    draws = sum(counts.values())
    if any(distribution.get(output, 0.0) == 0 for output in counts):
        return math.inf
    cells = [(counts.get(output, 0), draws * p) for output, p in distribution.items() if draws * p >= _EXPECTED]
    rest = draws - sum(count for count, _ in cells), draws - sum(wanted for _, wanted in cells)
    if rest[1] >= _EXPECTED:
        cells.append(rest)
    statistic = sum((count - wanted) ** 2 / wanted for count, wanted in cells)
    degrees = bound = len(cells) - 1
    assert degrees >= 3
    while degrees / 2 * math.log(bound / degrees) + (degrees - bound) / 2 > math.log(ALPHA / _TESTS):
        bound += 1
    return float(statistic / bound)


def sampled_outputs(
    model: Any,
    constraint: Constraint,
    drafter: AnyDrafter,
    sampler: Multinomial,
    count: int,
    *,
    most: int,
    **options: Any,
) -> tuple[Counter[Prefix], int]:
    """Outputs of different seeds, and the number of accepted draft tokens."""
    found: Counter[Prefix] = Counter()
    accepted = 0
    for seed in range(count):
        result = generate(
            model, PROMPT, constraint, sampler=sampler, drafter=drafter, seed=seed, max_tokens=most, **options
        )
        found[result.tokens] += 1
        accepted += result.stats.accepted
    return found, accepted


def by_model(shape: Any, verifier: Any = None, **options: Any) -> Callable[[HashModel], AnyDrafter]:
    """A draft model with a sharper distribution than the target's."""

    def make(target: HashModel) -> AnyDrafter:
        drafter = DraftModel(Sharp(target.vocabulary, seed=target.seed), shape, **options)
        return drafter if verifier is None else Speculation(drafter, verifier=verifier)

    return make


def by_foreign(shape: Any, bridge: Any) -> Callable[[HashModel], AnyDrafter]:
    """A draft model with other tokens."""
    return lambda target: DraftModel(Sharp(OTHER, seed=target.seed), shape, bridge)


def around(wrapped: Callable[[Drafter], Drafter]) -> Callable[[HashModel], AnyDrafter]:
    """A drafter around a draft model."""
    return lambda target: wrapped(DraftModel(Sharp(target.vocabulary, seed=target.seed), Chain(2)))


DRAWERS: dict[str, Callable[[HashModel], AnyDrafter]] = {
    "chain": by_model(Chain(3)),
    "chain in one": by_model(Chain(3), ChainSampling()),
    "block": by_model(Chain(3), BlockVerification()),
    "tree": by_model(Fixed.branching(3, 2, 1)),
    "tree, cut by a budget": lambda target: Speculation(
        DraftModel(Sharp(target.vocabulary, seed=target.seed), Fixed.branching(3, 2, 1)), budget=3
    ),
    "dyspec": by_model(DySpec(0.01)),
    "sequoia": by_model(Sequoia(COST)),
    "k-sequential": by_model(IndependentDraws((3, 2, 1)), KSequential()),
    "k-sequential, fixed rho": by_model(IndependentDraws((3, 2)), KSequential(1.5)),
    "independent rejection": by_model(IndependentDraws((3, 2)), IndependentRejection()),
    "recursive rejection of independent draws": by_model(IndependentDraws((3, 2)), RecursiveRejection()),
    "a draft model with a drafter": by_model(Chain(3), drafter=TokenRecycling()),
    "short context": lambda target: ShortContext(
        Sharp(target.vocabulary, seed=target.seed), tokens=3, head=1, tail=1, chunk=1, refresh=1
    ),
    "stand": lambda _: Stand(),
    "stand, chain": lambda _: Stand(Chain(3)),
    "goodput": around(lambda drafter: Goodput(drafter, COST)),
    "pearl": around(lambda drafter: Pearl(drafter, 1, 4, 1)),
    "phrases": around(Extended),
    "bandit": around(lambda drafter: Bandit((drafter, Stand(), TokenRecycling()), cost=COST)),
    "combined": around(lambda drafter: Combined((drafter, PromptLookup()))),
}
"""Every drafter that draws, verifiers, and what may be around them."""
BRIDGED: dict[str, Callable[[HashModel], AnyDrafter]] = {
    "token intersection": by_foreign(Chain(3), TokenIntersection()),
    "string rejection": by_foreign(Fixed.branching(2, 1), StringRejection()),
    "string rejection, bounded": by_foreign(Chain(2), StringRejection(contexts=1, tokens=2, depth=1)),
}
"""For ``VOCABULARY`` alone."""


def check_distribution(
    make: Callable[[HashModel], AnyDrafter], language: Language, sampler: Multinomial, count: int, seed: int = 0
) -> None:
    model = HashModel(language.vocabulary, seed=seed)
    found, accepted = sampled_outputs(model, language.constraint(), make(model), sampler, count, most=language.most)
    assert accepted > 0
    assert excess(found, exact_distribution(model, language, sampler)) < 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("title", [*DRAWERS, *BRIDGED])
def test_the_distribution_of_outputs_is_exact(title: str) -> None:
    """Languages and samplers are tested in turn."""
    number = [*DRAWERS, *BRIDGED].index(title)
    language = list(LANGUAGES.values())[number % (2 if title in BRIDGED else 3)]
    sampler = list(SAMPLERS.values())[number // 3 % 2]
    check_distribution({**DRAWERS, **BRIDGED}[title], language, sampler, 150)


@pytest.mark.nightly
@pytest.mark.parametrize("title", [*DRAWERS, *BRIDGED])
def test_the_distribution_of_many_outputs_is_exact(title: str) -> None:
    """All languages and samplers are tested, and another target."""
    for name, language in LANGUAGES.items():
        if title in BRIDGED and name == "forced tokens":
            continue
        for seed, sampler in enumerate(SAMPLERS.values()):
            check_distribution({**DRAWERS, **BRIDGED}[title], language, sampler, 3_000, 4 * seed)


def _with_every(p: Any, q: Any, drafts: Any, chance: Any) -> int:
    """Accepts whatever is drafted."""
    return int(drafts[0] if drafts else chance.draw(p))


def _without_residual(p: Any, q: Any, drafts: Any, chance: Any) -> int:
    """Draws from the target's distribution after a rejection, not from the residual."""
    for draft in drafts:
        if chance.coin(acceptance(p[draft], q[draft])):
            return int(draft)
    return int(chance.draw(p))


def _the_wrong_way_round(p: Any, q: Any, drafts: Any, chance: Any) -> int:
    """Accepts drafts with ``q / p``."""
    for draft in drafts:
        if chance.coin(acceptance(q[draft], p[draft])):
            return int(draft)
    rest = residual(p, q, 1)
    return int(chance.draw(rest if rest.sum() > 0 else p))


def _all_against_the_same(p: Any, q: Any, drafts: Any, chance: Any) -> int:
    """Tests the second draft against the whole distribution again."""
    for draft in drafts:
        if chance.coin(acceptance(p[draft], q[draft])):
            return int(draft)
    rest = residual(p, q, 1)
    return int(chance.draw(rest if rest.sum() > 0 else p))


def _as_if_replaced(p: Any, q: Any, drafts: Any, chance: Any) -> int:
    """Forgets that rejected drafts are not sampled again."""
    return reject_recursively(p, q, drafts, chance, replaced=True)


@final
@dataclass(frozen=True)
class Mistaken(Verifier):
    """A verifier that is wrong."""

    rule: Callable[..., int]

    lossless: ClassVar[bool] = False
    replaced: ClassVar[bool] = False

    def choose(self, p: Any, q: Any, drafts: Any, chance: Any, /) -> int:
        return self.rule(p, q, drafts, chance)


def found_by(rule: Callable[..., int], shape: Any, count: int) -> float:
    language, sampler = LANGUAGES["letters"], SAMPLERS["plain"]
    model = HashModel(language.vocabulary)
    drafter = by_model(shape, Mistaken(rule))(model)
    found, _ = sampled_outputs(model, language.constraint(), drafter, sampler, count, most=language.most)
    return excess(found, exact_distribution(model, language, sampler))


@pytest.mark.exhaustive
@pytest.mark.parametrize("rule", [_with_every, _without_residual, _the_wrong_way_round], ids=lambda rule: rule.__doc__)
def test_mistakes_are_found(rule: Callable[..., int]) -> None:
    """The same test finds them, with little more outputs."""
    assert found_by(rule, Chain(3), 400) > 1


@pytest.mark.nightly
@pytest.mark.parametrize("rule", [_all_against_the_same, _as_if_replaced], ids=lambda rule: rule.__doc__)
def test_fine_mistakes_are_found(rule: Callable[..., int]) -> None:
    """The same test finds them, with as many outputs as in its nightly run."""
    assert found_by(rule, Fixed.branching(3, 2, 1), 3_000) > 1


@final
class Without(Potential):
    """Forbids some texts and some ends; asked about sampled tokens."""

    def prefix(self, hypothesis: Hypothesis, /) -> float:
        return -math.inf if b"bc" in hypothesis.data else 0.0

    def complete(self, hypothesis: Hypothesis, /) -> float:
        return -math.inf if hypothesis.data in {b"a", b"ca"} else self.prefix(hypothesis)


@pytest.mark.parametrize("verifier", [RecursiveRejection(), BlockVerification()], ids=repr)
def test_the_distribution_is_exact_where_something_is_forbidden(verifier: Any) -> None:
    """The potential cannot be foreseen: forbidden tokens are resampled from the rest."""
    language, sampler = LANGUAGES["letters"], SAMPLERS["plain"]
    model = HashModel(language.vocabulary)
    toy = ToyLanguage(model, PROMPT, language.pattern, language.most)

    def forbids(prefix: Prefix) -> bool:
        text = toy.text(tuple(token for token in prefix if token != STOP))
        return "bc" in text or (prefix[-1] == STOP and text in {"a", "ca"})

    found, accepted = sampled_outputs(
        model,
        language.constraint(),
        by_model(Chain(3), verifier)(model),
        sampler,
        250,
        most=language.most,
        potentials=[Without()],
    )
    assert accepted > 0
    assert excess(found, exact_distribution(model, language, sampler, forbids)) < 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("title", ["tree", "block", "k-sequential"])
def test_the_distribution_is_exact_for_sessions_that_run_chains(title: str) -> None:
    """One chain of a tree is run; the rest must count as if it had not been sampled."""
    language, sampler = LANGUAGES["letters"], SAMPLERS["plain"]
    model = HashModel(language.vocabulary)
    found, accepted = sampled_outputs(
        PlainModel(model), language.constraint(), DRAWERS[title](model), sampler, 200, most=language.most
    )
    assert accepted > 0
    assert excess(found, exact_distribution(model, language, sampler)) < 1


LAYERED: dict[str, Callable[[], AnyDrafter]] = {
    "layer skip": lambda: LayerSkip((1, 2), Fixed.branching(2, 1)),
    "clasp": lambda: Clasp(2, 1),
    "dynamic exit": lambda: DynamicExit(every=1, head=0.1),
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch = pytest.importorskip("torch")
    from layered_llama import write_llama

    from structgen.models.llama.model import LlamaModel

    folder = write_llama(tmp_path_factory.mktemp("llama") / "four", layers=4, deeper=0.6)
    return LlamaModel(folder, name="four", device=torch.device("cpu"), dtype=torch.float32)


def distribution_by_sessions(model: Any, constraint: Constraint, sampler: Multinomial) -> dict[Prefix, float]:
    """As ``exact_distribution``, for a vocabulary that is too large to enumerate, with several stops."""
    start = model.encode_prompt(PROMPT)
    found: Counter[Prefix] = Counter()
    pending: list[tuple[Prefix, float]] = [((), 1.0)]
    while pending:
        output, mass = pending.pop()
        distribution = expected_distribution(model, constraint, start, list(output), sampler)
        for token in np.flatnonzero(distribution).tolist():
            if token in constraint.vocabulary.eos:
                found[output] += mass * float(distribution[token])  # type: ignore[assignment]
            else:
                pending.append(((*output, token), mass * float(distribution[token])))
    return dict(found)


def check_layered(llama: Any, title: str, sampler: Multinomial, count: int) -> None:
    constraint = compile(regex("[abc]{1,2}"), llama.vocabulary)
    distribution = distribution_by_sessions(llama, constraint, sampler)
    assert math.isclose(sum(distribution.values()), 1)
    found, accepted = sampled_outputs(llama, constraint, LAYERED[title](), sampler, count, most=9)
    assert accepted > 0
    assert excess(found, distribution) < 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("title", LAYERED)
def test_the_distribution_is_exact_where_layers_are_left_out(llama: Any, title: str) -> None:
    """A network drafts for itself."""
    check_layered(llama, title, Multinomial(4.0), 120)


@pytest.mark.nightly
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("title", LAYERED)
def test_the_distribution_of_many_outputs_is_exact_where_layers_are_left_out(
    llama: Any, title: str, sampler: str
) -> None:
    """The same holds with more outputs."""
    check_layered(llama, title, SAMPLERS[sampler], 3_000)
