"""Draft models with the target's vocabulary: their drafts, and the distributions that they record."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from drafter_tasks import PlainModel, exact_distribution, expected_distribution, position, row_after, task_of
from exact_randomness import Chances, outcomes
from exact_target import total_variation
from numpy.typing import NDArray

from structgen.decode import Context, Greedy, Multinomial, generate
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.fixed_tree import Chain, Fixed
from structgen.decode.speculative.speculation import Speculation
from structgen.decode.speculative.tree_policy import Growth, Shape
from structgen.decode.speculative.verifier import RecursiveRejection
from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import DraftWarning, GenerationError, ModelError, VocabularyError
from structgen.frontends.regex import regex
from structgen.methods.drafters.draft_model import DraftModel
from structgen.methods.tree_policies.dynamic_tree import IndependentDraws
from structgen.methods.verifiers.acceptance_rules import KSequential
from structgen.models import HashModel

WORDS = regex("([ab]{1,4}(c|dd)){1,9}")
SHAPED = [Multinomial(), Multinomial(0.5), Multinomial(1.7, top_k=5, min_p=0.01), Multinomial(top_p=0.8)]


@pytest.fixture(scope="module")
def constraint(ab_vocabulary: Vocabulary) -> Constraint:
    return compile(WORDS, ab_vocabulary)


def propose(
    drafter: DraftModel, constraint: Constraint, tokens: list[int], budget: int = 32, **options: Any
) -> DraftTree:
    """The first draft of an output after one token."""
    context = Context(drafter.model, tokens)
    drafting = drafter.start(context, task_of(constraint, tokens, **options))
    tree = drafting.propose(context, position(context, constraint, len(tokens)), budget)
    drafting.close()
    return tree


@pytest.mark.parametrize("sampler", SHAPED, ids=str)
@pytest.mark.parametrize("shape", [Chain(4), Fixed.branching(3, 2, 1), IndependentDraws((2, 2, 1))], ids=repr)
@pytest.mark.parametrize("trees", [True, False])
def test_recorded_distributions_are_the_models(constraint: Constraint, sampler: Any, shape: Shape, trees: bool) -> None:
    """At every node the distribution is the draft model's own, masked and shaped.

    Children are sampled from it; forced ones have none.
    """
    model: Any = HashModel(constraint.vocabulary, seed=3)
    draft = model if trees else PlainModel(model)
    checked = 0
    for seed in range(4):
        tree = propose(DraftModel(draft, shape), constraint, [5, 9], sampler=sampler, seed=seed)
        for parent, sampled in tree.sampled.items():
            prefix = tree.prefix(parent) if parent != ROOT else []
            expected = expected_distribution(model, constraint, [5, 9], prefix, sampler)
            assert sampled.distribution == pytest.approx(expected, abs=1e-7)
            assert sampled.distribution.sum() == pytest.approx(1, abs=1e-12)
            assert sampled.replaced == isinstance(shape, IndependentDraws)
            children = [tree.tokens[child] for child in tree.children(parent)]
            assert list(dict.fromkeys(sampled.tokens)) == children
            if isinstance(shape, IndependentDraws):
                assert len(sampled.tokens) == shape.draws_by_depth[depth_of(tree, parent)]
            for child in tree.children(parent):
                assert tree.confidences[child] == pytest.approx(sampled.distribution[tree.tokens[child]], abs=1e-12)
            checked += 1
        for node, parent in enumerate(tree.parents):
            assert (parent in tree.sampled) != (tree.sources[node] == FORCED)
    assert checked > 8


@pytest.mark.nightly
def test_tokens_are_sampled_from_the_recorded_distribution(constraint: Constraint) -> None:
    """Chains of two tokens in 6,000 drafts agree with the product of their distributions.

    With 40 tests at 1e-8 each, 5.8 standard errors, an error of the first kind has a probability below 1e-6.
    """
    sampler = Multinomial(0.8, top_k=6)
    model = HashModel(constraint.vocabulary, seed=11)
    drafter = DraftModel(model, Chain(2))
    context = Context(model, [4])
    task = task_of(constraint, [4], sampler, seed=2)
    drafting = drafter.start(context, task)
    state = position(context, constraint, 1)
    count = 6_000
    found: Counter[tuple[int, ...]] = Counter()
    for _ in range(count):
        tree = drafting.propose(context, state, 8)
        chosen = [node for node in range(len(tree)) if tree.sources[node] != FORCED][:2]
        found[tuple(tree.tokens[node] for node in chosen)] += 1
    first = expected_distribution(model, constraint, [4], [], sampler)
    tests = 0
    for token in np.flatnonzero(first).tolist():
        probe = constraint.matcher()
        probe.accept(token)
        forced = probe.forced_tokens()
        second = expected_distribution(model, constraint, [4], [token, *forced], sampler)
        for after in np.flatnonzero(second).tolist():
            p = float(first[token] * second[after])
            error = math.sqrt(p * (1 - p) / count)
            assert abs(found.pop((token, after), 0) / count - p) < 5.8 * error + 1 / count
            tests += 1
    assert not found
    assert tests <= 40


def test_a_draw_without_replacement_is_verified_to_the_targets_distribution(constraint: Constraint) -> None:
    """Exact fractions: three children are sampled from the recorded distribution, in all orders.

    With every coin of the verifier, the result has the target's distribution, which is another model's.
    """
    sampler = Multinomial(top_k=4)
    draft, target = HashModel(constraint.vocabulary, seed=1), HashModel(constraint.vocabulary, seed=2)
    tree = propose(DraftModel(draft, Fixed.branching(3)), constraint, [4], sampler=sampler)
    q_distribution = tree.sampled[ROOT].distribution
    p_distribution = expected_distribution(target, constraint, [4], [], Multinomial(top_k=5))
    ids = np.flatnonzero((q_distribution > 0) | (p_distribution > 0))
    q, p = (fractions_of(distribution[ids]) for distribution in (q_distribution, p_distribution))
    assert sum(q) == sum(p) == 1

    def run(chances: Chances) -> int:
        left = list(q)
        drafts = []
        for _ in range(3):
            drafts.append(chances.choose(left))
            left[drafts[-1]] = Fraction(0)
        return RecursiveRejection().choose(np.array(p), np.array(q), drafts, Exact(chances))

    distribution: Counter[int] = Counter()
    for probability, index in outcomes(run):
        distribution[index] += probability  # type: ignore[assignment]
    assert [distribution[index] for index in range(len(ids))] == p


def test_drafts_of_the_target_itself_are_all_taken(constraint: Constraint) -> None:
    """Greedy drafts of the target itself are all accepted, and passes are as few as chains allow."""
    for seed in range(8):
        model = HashModel(constraint.vocabulary, seed=seed)
        plain = generate(model, "ab", constraint, max_tokens=24, drafter=None)
        drafted = generate(model, "ab", constraint, max_tokens=24, drafter=DraftModel(model, Chain(5)))
        assert drafted.tokens == plain.tokens
        assert drafted.stats.accepted == drafted.stats.drafted
        assert drafted.stats.forwards <= 1 + math.ceil((plain.stats.sampled + 1) / 6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", [Chain(4), Fixed.branching(3, 2, 2)], ids=repr)
@pytest.mark.parametrize("sampler", [Greedy(), Multinomial(), Multinomial(0.6, top_k=9)], ids=str)
def test_chosen_drafts_leave_the_output_as_it_is(constraint: Constraint, shape: Shape, sampler: Any) -> None:
    """Outputs are equal seed for seed, whatever model drafts."""
    target = HashModel(constraint.vocabulary, seed=4)
    for seed in range(6):
        drafter = DraftModel(HashModel(constraint.vocabulary, seed=seed), shape, draws=False)
        plain = generate(target, "ba", constraint, max_tokens=24, sampler=sampler, seed=seed, drafter=None)
        drafted = generate(target, "ba", constraint, max_tokens=24, sampler=sampler, seed=seed, drafter=drafter)
        assert drafted.tokens == plain.tokens
        assert drafted.stats.drafted > 0


@pytest.mark.nightly
@pytest.mark.parametrize("verified", ["without replacement", "with replacement"])
def test_sampled_drafts_leave_the_distribution_as_it_is(ab_vocabulary: Vocabulary, verified: str) -> None:
    """1,000 outputs with drafts agree with the exact distribution of locally constrained decoding.

    The distance of so many draws from a distribution of 16 outcomes is 0.064 or less on average, and 0.084 more with a
    probability below 1e-6 (McDiarmid).
    """
    constraint = compile(regex("[ab]{2}(c|d)"), ab_vocabulary)
    target, draft = HashModel(ab_vocabulary, seed=7), HashModel(ab_vocabulary, seed=8)
    sampler = Multinomial(0.7)
    distribution = exact_distribution(target, constraint, sampler, [1])
    shape: Shape = Fixed.branching(2, 2) if verified == "without replacement" else IndependentDraws((2, 2))
    verifier = RecursiveRejection() if verified == "without replacement" else KSequential()
    speculation = Speculation(DraftModel(draft, shape), verifier)
    count = 1_000
    found: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    for seed in range(count):
        result = generate(
            target, "a", constraint, max_tokens=9, sampler=sampler, seed=seed, drafter=speculation, chat=False
        )
        found[result.tokens] += 1
        accepted += result.stats.accepted
    assert target.encode_prompt("a") == [1]
    assert len(distribution) <= 16
    assert total_variation({key: value / count for key, value in found.items()}, distribution) < 0.148
    assert accepted > count / 4


def test_shapes_learn_once_enough_came(constraint: Constraint) -> None:
    """A shape learns the tokens after its tree once they are as many as the tree is deep, or the output is over."""
    shape = Learning()
    model = HashModel(constraint.vocabulary, seed=1)
    context = Context(model, [4])
    drafting = DraftModel(model, shape).start(context, task_of(constraint, [4]))
    tree = drafting.propose(context, position(context, constraint, 1), 8)
    depth = tree.depth()
    came: list[int] = []
    for _ in range(2):
        state = position(context, constraint, 1)
        came.append(int(np.flatnonzero(np.unpackbits(state.mask.view(np.uint8), bitorder="little"))[1]))
        context.append(came[-1:])
        drafting.propose(context, position(context, constraint, 1), 8)
        assert shape.told == []
    context.truncate(2)
    drafting.close()
    assert depth > 2
    assert shape.told == [(tuple(tree.tokens), tuple(came[:1]))]


def test_another_vocabulary_is_refused_with_the_way_out(constraint: Constraint, json_vocabulary: Vocabulary) -> None:
    """At the start it is an error that names the difference; in the loop it is one warning, and the output stays."""
    drafter = DraftModel(HashModel(json_vocabulary, name="other"))
    model = HashModel(constraint.vocabulary)
    with pytest.raises(VocabularyError, match=r"draft model 'other': its vocabulary is not the target's.*bridge="):
        drafter.start(Context(model, [1]), task_of(constraint, [1]))
    with pytest.warns(DraftWarning, match="bridge=") as caught:
        drafted = generate(model, "ab", constraint, max_tokens=24, drafter=drafter)
    assert len(caught) == 1
    assert drafted.tokens == generate(model, "ab", constraint, max_tokens=24, drafter=None).tokens


def test_a_model_without_a_tokenizer_is_refused(constraint: Constraint) -> None:
    """The error of its vocabulary is passed on unchanged."""
    broken: Any = Broken()
    with pytest.raises(VocabularyError, match=r"draft model 'broken'.*cannot be read.*no tokenizer.json"):
        DraftModel(broken).start(Context(HashModel(constraint.vocabulary), [1]), task_of(constraint, [1]))


def test_padding_and_other_ends_are_no_other_vocabulary(constraint: Constraint) -> None:
    """A wider head and another end-of-text id give the same drafts; the end has the id that the target knows."""
    tokens = list(constraint.vocabulary.tokens)
    wider = Vocabulary(tokens, eos=[len(tokens) + 2], special={0: "<old>"}, size=len(tokens) + 8)
    letters = [constraint.vocabulary.tokens.index(letter) for letter in (b"a", b"c")]
    short = compile(regex("a?c?"), constraint.vocabulary)
    sampler = Multinomial()
    draft = HashModel(wider, seed=2)
    tree = propose(DraftModel(draft, Fixed.branching(2)), short, letters, sampler=sampler)
    logits = row_after(draft, letters).astype(np.float64)
    allowed = [constraint.vocabulary.tokens.index(text) for text in (b"a", b"c")]
    kept = np.exp(logits[[*allowed, len(tokens) + 2]])
    distribution = tree.sampled[ROOT].distribution
    assert len(distribution) == len(tokens)
    assert distribution[[*allowed, 0]] == pytest.approx(kept / kept.sum(), abs=1e-6)
    padded = compile(WORDS, constraint.vocabulary.with_size(len(tokens) + 3))
    narrow = propose(DraftModel(HashModel(constraint.vocabulary)), padded, letters, sampler=sampler)
    assert len(narrow.sampled[ROOT].distribution) == len(tokens) + 3


def test_a_prompt_that_it_cannot_read_is_refused(constraint: Constraint) -> None:
    """Where the output grows beyond its context, it drafts no more tokens."""
    model = HashModel(constraint.vocabulary, max_context=8)
    with pytest.raises(GenerationError, match="the prompt is too long for it"):
        propose(DraftModel(model), constraint, [4] * 8)
    assert len(propose(DraftModel(model), constraint, [4] * 7)) == 2
    target = HashModel(constraint.vocabulary, seed=3)
    drafted = generate(target, "abab", constraint, max_tokens=24, drafter=DraftModel(model))
    assert drafted.tokens == generate(target, "abab", constraint, max_tokens=24, drafter=None).tokens


def test_settings_are_checked(constraint: Constraint) -> None:
    """A bridge and a stage exclude each other; the numbers of draws are positive."""
    model: Any = HashModel(constraint.vocabulary)
    bridge: Any = object()
    with pytest.raises(ValueError, match="bridge"):
        DraftModel(model, bridge=bridge, drafter=DraftModel(model))
    for counts in ((), (2, 0), (1.5,)):
        with pytest.raises(ValueError, match="IndependentDraws"):
            IndependentDraws(counts)  # type: ignore[arg-type]


def depth_of(tree: DraftTree, parent: int) -> int:
    """The number of draft tokens before the children of a node."""
    return 0 if parent == ROOT else sum(tree.sources[node] != FORCED for node in tree.path(parent))


def fractions_of(distribution: NDArray[Any]) -> list[Fraction]:
    """A distribution near a given one, in fractions of a million that sum to 1."""
    parts = [Fraction(round(value * 10**6), 10**6) for value in distribution.tolist()]
    parts[int(distribution.argmax())] += 1 - sum(parts)
    return parts


class Exact:
    """``Chance`` in fractions."""

    def __init__(self, chances: Chances) -> None:
        self._chances = chances

    def coin(self, probability: Any, /) -> bool:
        if probability >= 1 or probability <= 0:
            return bool(probability >= 1)
        return self._chances.choose([1 - probability, probability]) == 1

    def draw(self, weights: Any, /) -> int:
        return self._chances.choose(list(weights))


class Learning(Shape):
    """A chain of four that records what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def grow(self, growth: Growth, budget: int, *, kind: int = 0, generator: Any = None) -> DraftTree:
        return Chain(4).grow(growth, budget, kind=kind, generator=generator)

    def learn(self, tree: DraftTree, came: Any, kind: int) -> None:
        self.told.append((tuple(tree.tokens), tuple(came)))


class Broken:
    """A model without a tokenizer."""

    name = "broken"
    max_context = None

    @property
    def vocabulary(self) -> Vocabulary:
        raise ModelError("model 'broken'", "there is no tokenizer.json")
