"""Counts by state against counts over all outputs, and learning across outputs of one grammar."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from drafter_replay import draft_for, replay
from word_vocabulary import draft_vocabulary

from structgen.decode.speculative.drafters.grammar_statistics import GrammarStatistics, StateCounts
from structgen.engine import Constraint, Vocabulary, compile
from structgen.grammar.nodes import ByteClass, Grammar, Repeat, choice, sequence

VOCABULARY = draft_vocabulary()
LETTERS = ByteClass([(97, 122), (65, 90), (32, 32)])


def grammar() -> Grammar:
    field = sequence('"', Repeat(LETTERS, 0, None), '"')
    return sequence('{"name":', choice(" ", ""), field, choice(", ", ","), '"city":', choice(" ", ""), field, "}")


RECORDS = compile(grammar(), VOCABULARY)


def record(name: str, city: str) -> list[int]:
    return VOCABULARY.tokenize(f'{{"name": "{name}", "city": "{city}"}}')


@pytest.mark.parametrize("seed", range(10))
def test_counts_are_those_of_all_outputs(seed: int) -> None:
    generator = np.random.default_rng(seed)
    texts = ["Ada", "Ad", "Grace", "me", "Love", ""]
    counts = StateCounts()
    drafter = GrammarStatistics(counts, most=99)
    expected: dict[tuple[int, int], Counter[int]] = {}
    for _ in range(15):
        output = record(*generator.choice(texts, size=2).tolist())
        replay(drafter, RECORDS, [99], output)
        matcher = RECORDS.matcher()
        for before, token in zip([-1, *output], output, strict=False):
            expected.setdefault((matcher.state_id, before), Counter())[token] += 1
            assert matcher.accept(token)
    matcher = RECORDS.matcher()
    for before, token in zip([-1, *output], output, strict=False):
        drafting, _, _ = draft_for(drafter, RECORDS, [99])
        known = expected[matcher.state_id, before]
        best = drafting._frequent(matcher, -2, before)  # type: ignore[attr-defined]
        total = sum(known.values())
        assert {draft.token: draft.key[2] for draft in best} == {
            each: round(8 * count / (total + 1)) for each, count in known.items()
        }
        assert matcher.accept(token)


def test_the_second_output_of_a_grammar_is_mostly_known() -> None:
    drafter = GrammarStatistics()
    first, second = record("Ada", "London"), record("Grace Hopper", "Paris")
    alone = replay(drafter, RECORDS, [99], first).passes
    fresh = replay(GrammarStatistics(), RECORDS, [99], second).passes
    assert replay(drafter, RECORDS, [99], second).passes < fresh
    assert replay(drafter, RECORDS, [99], first).passes <= alone / 2


def test_a_grammar_that_is_compiled_anew_goes_on_with_the_counts() -> None:
    """Both are compiled here: counts are of an engine, and the vocabulary may have another one since the import."""
    drafter = GrammarStatistics()
    first, again = compile(grammar(), VOCABULARY), compile(grammar(), VOCABULARY)
    assert first is not again
    replay(drafter, first, [99], record("Ada", "London"))
    assert replay(drafter, again, [99], record("Ada", "London")).passes <= 2


def test_counts_are_not_those_of_another_engine() -> None:
    """A new engine numbers states anew, so that counts of an old one would be of other states."""
    drafter = GrammarStatistics()
    replay(drafter, RECORDS, [99], record("Ada", "London"))
    apart = RECORDS.alone()
    assert apart.engine is not RECORDS.engine
    assert drafter.counts.states(RECORDS) > 0
    assert drafter.counts.states(apart) == 0


def test_a_token_that_was_taken_back_and_what_replaced_it_both_count() -> None:
    drafter = GrammarStatistics()
    drafting, context, state = draft_for(drafter, RECORDS, [99])
    output = record("Ada", "London")
    for token in output[:4]:
        context.append([token])
        drafting.propose(context, state, 4)
    context.truncate(3)
    context.append(output[2:])
    drafting.close()
    assert replay(drafter, RECORDS, [99], output).passes <= 2


def test_counts_are_bounded() -> None:
    counts = StateCounts(max_states=5)
    own = Vocabulary([bytes([value]) for value in range(256)])
    constraint: Constraint | None = compile(Repeat(LETTERS, 0, None), own)
    assert constraint is not None
    for state in range(20):
        counts.add(constraint, [state], 1)
    assert counts.states(constraint) == 5
    assert counts.after(constraint, [3, 19], 4) == (1, 1, [(1, 1)])
    for token in range(100):
        counts.add(constraint, ["full"], token)
        counts.add(constraint, ["full"], 7)
    level, _, best = counts.after(constraint, ["full"], 99)
    assert (level, best[0]) == (0, (7, 101))
    assert len(best) <= 33
    assert len(counts._counts) == 1


def test_counts_go_with_their_engine() -> None:
    """This runs in another process: in this one, traces of other tests may hold an engine."""
    script = """if True:
        import gc
        from structgen.decode.speculative.drafters.grammar_statistics import StateCounts
        from structgen.engine import Vocabulary, compile
        from structgen.frontends.regex import regex

        counts = StateCounts()
        vocabulary = Vocabulary([bytes([value]) for value in range(256)])
        constraint = compile(regex("[a-z]*"), vocabulary)
        counts.add(constraint, ["here"], 1)
        assert len(counts._counts) == 1
        del constraint, vocabulary
        gc.collect()
        print(len(counts._counts))
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="GrammarStatistics: most"):
        GrammarStatistics(most=0)
    with pytest.raises(ValueError, match="StateCounts: max_states"):
        StateCounts(max_states=0)
