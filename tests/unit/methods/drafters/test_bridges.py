"""Draft models with another vocabulary: three ways to use them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from bpe_vocabularies import bpe_vocabulary
from drafter_tasks import exact_distribution, position, row_after, task_of
from exact_target import total_variation

from structgen.decode import Context, Greedy, Multinomial, generate
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.fixed_tree import Chain, Fixed
from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import GenerationError, VocabularyError
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.methods.drafters.draft_model import DraftModel
from structgen.methods.drafters.draft_session import Bridge, SharedTokens
from structgen.methods.drafters.string_rejection import StringRejection
from structgen.methods.drafters.token_bridge import ExactStringMatch, TokenIntersection, retokenized
from structgen.models import HashModel

RECORD = json_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
WRITES = '{"name": "the brown fox", "age": 36}'
BRIDGES: dict[str, Bridge] = {
    "text": ExactStringMatch(),
    "shared": TokenIntersection(),
    "distribution": StringRejection(),
    "whole distribution": StringRejection(contexts=None, tokens=None, depth=None, least=0.001),
}


@pytest.fixture(scope="module")
def constraint() -> Constraint:
    return compile(RECORD, bpe_vocabulary("records"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("bridge", BRIDGES)
@pytest.mark.parametrize("sampler", [Greedy(), Multinomial(0.5)], ids=str)
def test_chosen_drafts_leave_the_output_as_it_is(constraint: Constraint, bridge: str, sampler: Any) -> None:
    """Outputs are equal seed for seed; a draft model with the same preferences saves passes."""
    target = HashModel(constraint.vocabulary, seed=1, writes=WRITES)
    for seed, writes in ((0, WRITES), (1, WRITES.replace("fox", "dog")), (2, None)):
        draft = HashModel(bpe_vocabulary("prose"), seed=seed, writes=writes)
        drafter = DraftModel(draft, Chain(6), bridge=BRIDGES[bridge], draws=False)
        plain = generate(target, "who?", constraint, max_tokens=60, sampler=sampler, seed=seed, drafter=None)
        drafted = generate(target, "who?", constraint, max_tokens=60, sampler=sampler, seed=seed, drafter=drafter)
        assert drafted.tokens == plain.tokens
        if writes is not None:
            assert drafted.stats.forwards < 0.75 * plain.stats.forwards


@pytest.mark.parametrize("bridge", BRIDGES)
def test_drafts_do_not_depend_on_what_came_before(constraint: Constraint, bridge: str) -> None:
    """After random outcomes and rollbacks, the draft is that of a new drafter."""
    target = HashModel(constraint.vocabulary, seed=1, writes=WRITES)
    drafter = DraftModel(HashModel(bpe_vocabulary("prose"), seed=2, writes=WRITES), Chain(4), bridge=BRIDGES[bridge])
    prompt = target.encode_prompt("who is it?")
    context = Context(target, prompt)
    drafting = drafter.start(context, task_of(constraint, prompt))
    random = np.random.default_rng(3)
    proposed = 0
    for _ in range(25):
        state = position(context, constraint, len(prompt))
        tree = drafting.propose(context, state, 16)
        fresh = drafter.start(context, task_of(constraint, prompt)).propose(context, state, 16)
        assert (tree.tokens, tree.parents) == (fresh.tokens, fresh.parents)
        assert tree.confidences == pytest.approx(fresh.confidences, abs=1e-6)
        proposed += len(tree)
        ids = np.flatnonzero(np.unpackbits(state.mask.view(np.uint8), bitorder="little"))
        ordinary = [int(token) for token in ids if token not in constraint.vocabulary.eos]
        if random.random() < 0.3 or not ordinary:
            context.truncate(len(prompt) + int(random.integers(len(context) - len(prompt) + 1)))
        elif len(tree) and random.random() < 0.7:
            path = tree.prefix(int(random.integers(len(tree))))
            matcher = state.matcher.fork()
            context.append(
                [token for token in path if token not in constraint.vocabulary.eos and matcher.accept(token)]
            )
        else:
            context.append([int(random.choice(ordinary))])
    assert proposed > 25


def test_text_drafts_are_the_text_of_the_draft_model(constraint: Constraint) -> None:
    """It is the draft model's greedy text under the same grammar, after the same text, in the target's tokens."""
    target, draft = HashModel(constraint.vocabulary), HashModel(bpe_vocabulary("prose"), seed=4, writes=WRITES)
    prompt = target.encode_prompt("so: ")
    begun = constraint.vocabulary.tokenize('{"name": "th')
    context = Context(target, [*prompt, *begun])
    drafting = DraftModel(draft, Chain(5), bridge=ExactStringMatch()).start(context, task_of(constraint, prompt))
    tree = drafting.propose(context, position(context, constraint, len(prompt)), 32)
    written = constraint.vocabulary.decode(tree.prefix(len(tree) - 1))
    assert tree.tokens == constraint.vocabulary.tokenize(written)
    matcher = compile(RECORD, draft.vocabulary).matcher()
    matcher.accept_bytes(b'{"name": "th')
    tokens = [*draft.vocabulary.tokenize(b"so: "), *draft.vocabulary.tokenize(b'{"name": "th')]
    text, drafts, confidence = b"", 0, 1.0
    while drafts < 5:
        allowed = [token for token in range(draft.vocabulary.size) if matcher.validate([token]) == 1]
        logits = row_after(draft, tokens).astype(np.float64)
        logits -= np.logaddexp.reduce(logits[allowed])
        forced = matcher.forced_tokens()[:1] or (allowed if len(allowed) == 1 else [])
        token = forced[0] if forced else max(allowed, key=lambda each: logits[each])
        drafts += not forced
        confidence *= 1.0 if forced else float(np.exp(logits[token]))
        tokens.append(token)
        text += draft.vocabulary.tokens[token]
        assert matcher.accept(token)
    assert written == text
    assert np.prod(tree.confidences) == pytest.approx(confidence, rel=1e-5)


def test_texts_of_a_tree_share_their_prefixes() -> None:
    """Each path has the target's spelling; a token is as likely as all texts that begin in it."""
    draft = Vocabulary([b"", b"a", b"b", b"ab", b"c"], eos=[0])
    target = Vocabulary([b"", b"a", b"b", b"c", b"bc", b"aa"], eos=[0])
    tree = DraftTree()
    first = tree.add(ROOT, 1, 0.5)  # a
    second = tree.add(first, 3, 0.4)  # a ab
    tree.add(second, 4, 0.25)  # a ab c
    tree.add(first, 0, 0.1)  # a, the end
    forced = tree.add(ROOT, 4, 1.0, source=FORCED)  # c
    tree.add(forced, 2, 0.75)  # c b
    found = retokenized(tree, draft, target)
    paths = {tuple(found.prefix(node)): found.confidences[node] for node in range(len(found))}
    assert paths == pytest.approx({(5,): 0.5 * 0.4, (5, 4): 0.25, (1,): 0.5, (3,): 1.0, (3, 2): 0.75})
    assert len(retokenized(DraftTree(), draft, target)) == 0


@pytest.mark.parametrize("seed", range(4))
def test_distributions_of_shared_tokens(constraint: Constraint, seed: int) -> None:
    """They are the draft model's probabilities of allowed tokens that both models have, renormalised."""
    target, draft = HashModel(constraint.vocabulary), HashModel(bpe_vocabulary("prose"), seed=seed)
    prompt, begun = target.encode_prompt("so: "), constraint.vocabulary.tokenize('{"name": "')
    context = Context(target, [*prompt, *begun])
    drafter = DraftModel(draft, Fixed.branching(2, 2), bridge=TokenIntersection())
    drafting = drafter.start(context, task_of(constraint, prompt, Multinomial(0.9), seed))
    tree = drafting.propose(context, position(context, constraint, len(prompt)), 16)
    assert len(tree.sampled) == 3
    head = [*draft.vocabulary.tokenize(b"so: "), *draft.vocabulary.tokenize(b'{"name": "')]
    for parent, sampled in tree.sampled.items():
        path = tree.prefix(parent) if parent != ROOT else []
        pieces = [constraint.vocabulary.tokens[token] for token in path]
        logits = row_after(draft, [*head, *(draft.vocabulary.tokens.index(piece) for piece in pieces)])
        matcher = constraint.matcher()
        assert all(matcher.accept(token) for token in [*begun, *path])
        weights = np.zeros(constraint.vocabulary.size)
        for token, piece in enumerate(constraint.vocabulary.tokens):
            if piece and piece in draft.vocabulary.tokens and matcher.validate([token]) == 1:
                weights[token] = np.exp(float(logits[draft.vocabulary.tokens.index(piece)]) / 0.9)
        assert sampled.distribution == pytest.approx(weights / weights.sum(), abs=1e-6)


def test_equal_bytes_are_paired_in_order() -> None:
    """Several ids with the same bytes are paired one by one, and all ends become the target's first."""
    target = Vocabulary([b"", b"a", b"b", b"a", b"ab", b"a"], eos=[0])
    draft = Vocabulary([b"a", b"", b"b", b"a", b"", b"c"], eos=[1, 4])
    shared = SharedTokens(target, draft)
    assert list(zip(shared.target_ids.tolist(), shared.draft_ids.tolist(), strict=True)) == [(1, 0), (2, 2), (3, 3)]
    row = shared.row(np.log(np.array([1, 2, 3, 4, 5, 6], dtype=np.float32)))
    assert np.exp(row).tolist() == pytest.approx([7, 1, 3, 4, 0, 0])
    assert [shared.draft_id(token) for token in (1, 3, 4)] == [0, 3, None]


def test_without_shared_tokens_there_is_no_way() -> None:
    """The message names the other way."""
    target, draft = Vocabulary([b"", b"a"], eos=[0]), Vocabulary([b"", b"aa", b"b"], eos=[0])
    constraint = compile(regex("a*"), target)
    drafter = DraftModel(HashModel(draft), bridge=TokenIntersection())
    with pytest.raises(VocabularyError, match="ExactStringMatch"):
        drafter.start(Context(HashModel(target), [1]), task_of(constraint, [1]))


CROSSING = Vocabulary([b"", b"a", b"b", b"c", b"d", b"aa", b"abb", b"bc", b"bbc", b"ca"], eos=[0])


def text_distribution(
    draft: HashModel, target: Vocabulary, constraint: Constraint, prompt: bytes, output: bytes
) -> Any:
    """The distribution of the longest target token that starts the draft model's text, by enumeration of all texts."""
    reference = compile(constraint.grammar, draft.vocabulary)
    found: Counter[int] = Counter()
    start = [*draft.vocabulary.tokenize(prompt), *draft.vocabulary.tokenize(output)]
    pending: list[tuple[list[int], bytes, float]] = [([], b"", 1.0)]
    longest = max(map(len, target.tokens))
    while pending:
        tokens, text, mass = pending.pop()
        matcher = reference.matcher()
        matcher.accept_bytes(output)
        assert all(matcher.accept(token) for token in tokens)
        allowed = [token for token in range(draft.vocabulary.size) if matcher.validate([token]) == 1]
        logits = row_after(draft, [*start, *tokens]).astype(np.float64)
        for token in allowed:
            p = mass * float(np.exp(logits[token] - np.logaddexp.reduce(logits[allowed])))
            longer = text + draft.vocabulary.tokens[token]
            if token in draft.vocabulary.eos or len(longer) >= longest:
                best = max((len(piece) for piece in target.tokens if piece and longer.startswith(piece)), default=0)
                found[target.tokens.index(longer[:best]) if best else 0] += p
            else:
                pending.append(([*tokens, token], longer, p))
    return np.array([found[token] for token in range(target.size)])


@pytest.mark.parametrize("seed", range(3))
def test_distributions_of_texts(ab_vocabulary: Vocabulary, seed: int) -> None:
    """Without bounds, the recorded distributions equal an enumeration of all texts of the draft model."""
    constraint = compile(regex("([ab]{1,4}(c|d)){1,3}"), ab_vocabulary)
    draft = HashModel(CROSSING, seed=seed)
    target = HashModel(ab_vocabulary)
    prompt = [ab_vocabulary.tokens.index(b"ab")]
    context = Context(target, [*prompt, ab_vocabulary.tokens.index(b"ba")])
    drafter = DraftModel(
        draft, Fixed.branching(2, 1), bridge=BRIDGES["whole distribution"].__class__(None, None, None, 0.0)
    )
    drafting = drafter.start(context, task_of(constraint, prompt, Multinomial(), seed))
    tree = drafting.propose(context, position(context, constraint, 1), 16)
    assert len(tree.sampled) >= 2
    for parent, sampled in tree.sampled.items():
        output = b"ba" + ab_vocabulary.decode(tree.prefix(parent) if parent != ROOT else [])
        assert sampled.distribution == pytest.approx(
            text_distribution(draft, ab_vocabulary, constraint, b"ab", output), abs=1e-6
        )


@pytest.mark.nightly
@pytest.mark.parametrize("bridge", ["shared", "distribution"])
def test_sampled_drafts_leave_the_distribution_as_it_is(ab_vocabulary: Vocabulary, bridge: str) -> None:
    """1,000 outputs with drafts agree with the exact distribution of locally constrained decoding.

    The distance of so many draws from a distribution of 16 outcomes is 0.064 or less on average, and 0.084 more with a
    probability below 1e-6 (McDiarmid).
    """
    constraint = compile(regex("[ab]{2}(c|d)"), ab_vocabulary)
    target, sampler = HashModel(ab_vocabulary, seed=7), Multinomial(0.7)
    drafter = DraftModel(HashModel(CROSSING, seed=8), Fixed.branching(2, 1), bridge=BRIDGES[bridge])
    distribution = exact_distribution(target, constraint, sampler, [1])
    count = 1_000
    accepted = 0
    found: Counter[tuple[int, ...]] = Counter()
    for seed in range(count):
        result = generate(target, "a", constraint, max_tokens=9, sampler=sampler, seed=seed, drafter=drafter)
        found[result.tokens] += 1
        accepted += result.stats.accepted
    assert target.encode_prompt("a") == [1]
    assert len(distribution) <= 16
    assert total_variation({key: value / count for key, value in found.items()}, distribution) < 0.148
    assert accepted > count / 8


@pytest.mark.parametrize("bridge", BRIDGES)
def test_a_prompt_that_the_draft_model_cannot_read_is_refused(constraint: Constraint, bridge: str) -> None:
    """The length counts in its own tokens, not in the target's."""
    target = HashModel(constraint.vocabulary)
    prompt = target.encode_prompt("who is it?")
    length = len(bpe_vocabulary("prose").tokenize("who is it?"))
    for bound in (length, length + 1):
        drafter = DraftModel(HashModel(bpe_vocabulary("prose"), max_context=bound), bridge=BRIDGES[bridge])
        if bound == length:
            with pytest.raises(GenerationError, match="the prompt is too long for it"):
                drafter.start(Context(target, prompt), task_of(constraint, prompt))
        else:
            drafter.start(Context(target, prompt), task_of(constraint, prompt)).close()


def test_bounds_are_checked() -> None:
    """Numbers must be positive, and the least probability a probability."""
    for bad in ({"contexts": 0}, {"tokens": 1.5}, {"depth": -1}, {"least": 1.0}, {"least": -0.1}):
        with pytest.raises(ValueError, match="StringRejection"):
            StringRejection(**bad)  # type: ignore[arg-type]
