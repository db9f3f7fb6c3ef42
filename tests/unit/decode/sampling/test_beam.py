"""Beam search against all outputs, and against a plain beam search in this file."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from toy_outputs import STOP, Output, Toy, few_b, toys

from structgen.errors import GenerationError
from structgen.methods.samplers.beam import Beam

TOYS = toys()


def plain_beams(toy: Toy, width: int) -> list[Output]:
    """Textbook beam search without potentials: the best ``width`` beams that go on, and all that stopped before."""
    live: list[tuple[float, Output]] = [(0.0, ())]
    finished: list[tuple[float, Output]] = []
    while live:
        candidates = sorted(
            (-(log_p + more), index, token)
            for index, (log_p, tokens) in enumerate(live)
            for token, more in toy.choices(tokens).items()
        )
        grown: list[tuple[float, Output]] = []
        for negative, index, token in candidates:
            if len(grown) == width:
                break
            tokens = live[index][1]
            if token == STOP:
                finished.append((-negative, tokens))
            else:
                grown.append((-negative, (*tokens, token)))
        finished = sorted(finished, key=lambda item: (-item[0], item[1]))[:width]
        live = grown
        if len(finished) == width:
            live = [each for each in live if max(log_p for log_p, _ in live) > finished[-1][0]]
    return [tokens for _, tokens in finished]


@pytest.mark.parametrize("name", TOYS)
def test_wide_beams_find_all_in_order(name: str) -> None:
    toy = TOYS[name]
    found = toy.samples(Beam(1_000))
    assert [each.result.tokens for each in found.samples] == toy.ranking
    for each in found.samples:
        assert each.score == each.log_weight == pytest.approx(toy.target[each.result.tokens], abs=1e-9)
        assert each.result.logprob + each.result.log_z == pytest.approx(toy.log_p[each.result.tokens], abs=1e-9)
        assert re.fullmatch(toy.pattern, each.result.text)
    assert found.best().tokens == toy.ranking[0]


@pytest.mark.parametrize("width", [1, 2, 3, 5])
@pytest.mark.parametrize("name", [name for name, toy in TOYS.items() if not toy.potentials])
def test_narrow_beams_are_those_of_the_book(name: str, width: int) -> None:
    toy = TOYS[name]
    found = [each.result.tokens for each in toy.samples(Beam(width)).samples]
    assert found == plain_beams(toy, width)
    assert found


def test_narrow_beams_miss_what_wide_ones_find() -> None:
    """A control: comparison with all outputs distinguishes a narrow beam from the best outputs."""
    toys = [Toy("[abc]{2,4}", 4, seed=seed) for seed in range(20)]
    assert any(toy.samples(Beam(1)).best().tokens != toy.ranking[0] for toy in toys)
    assert sum(toy.samples(Beam(6)).best().tokens == toy.ranking[0] for toy in toys) > sum(
        toy.samples(Beam(1)).best().tokens == toy.ranking[0] for toy in toys
    )


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("name", [name for name, toy in TOYS.items() if toy.potentials])
def test_potentials_are_respected(name: str, width: int) -> None:
    """All outputs of narrow beams are admitted and scored right; dead ends may leave none."""
    toy = TOYS[name]
    for each in toy.samples(Beam(width)).samples:
        assert each.score == pytest.approx(toy.target[each.result.tokens], abs=1e-9)


def test_forbidden_prefixes_take_no_beam() -> None:
    """With a predicate of prefixes, one beam follows the best admitted token, to any depth."""
    for seed in range(10):
        toy, greedy = Toy("[abc]{4}", 4, seed=seed, always=few_b), ()
        while len(toy.text(greedy)) < 4:
            admitted = {t: p for t, p in toy.choices(greedy).items() if toy.admits((*greedy, t))}
            greedy = (*greedy, max(admitted, key=lambda t: admitted[t]))
        assert toy.samples(Beam(1)).best().tokens == greedy


@pytest.mark.parametrize("power", [-0.5, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("name", ["one eos, [abc]{1,4}, 4 tokens", "no eos, (ab|c)*a?, 3 tokens", "scores"])
def test_length_penalties(name: str, power: float) -> None:
    toy = TOYS[name]
    stops = bool(toy.vocabulary.eos)

    def rank(output: Output) -> float:
        return toy.log_p[output] / max(len(output) + stops, 1) ** power + toy.score_of(output)

    wanted = sorted(toy.target, key=lambda output: (-rank(output), output))
    found = toy.samples(Beam(500, length_penalty=power))
    assert [each.result.tokens for each in found.samples] == wanted
    assert [each.score for each in found.samples] == pytest.approx([rank(output) for output in wanted], abs=1e-9)


def test_longer_outputs_are_favoured() -> None:
    toy = Toy("[abc]{1,4}", 4, seed=3)
    assert len(toy.samples(Beam(9)).best().tokens) < len(toy.samples(Beam(9, length_penalty=3.0)).best().tokens)


def test_it_stops_when_nothing_better_can_come() -> None:
    """The outputs are those of a search that goes on to the end, in fewer passes."""
    saved = 0
    for seed in range(20):
        toy = Toy("[abc]{1,6}", 6, seed=seed)
        early, late = toy.samples(Beam(2)), toy.samples(Beam(2, score_bound=math.inf))
        assert [each.result.tokens for each in early.samples] == [each.result.tokens for each in late.samples]
        saved += late.forwards - early.forwards
    assert saved > 5


def diverse_beams(toy: Toy, groups: int, diversity: float) -> list[Output]:
    """Diverse beam search with one beam per group, which goes on until it stops."""
    paths: list[list[int]] = [[] for _ in range(groups)]
    while any(path[-1:] != [STOP] for path in paths):
        taken: list[int] = []
        for path in paths:
            if path[-1:] == [STOP]:
                continue
            choices = toy.choices(tuple(path))
            forced = len(choices) == 1
            token = max(choices, key=lambda t: (choices[t] - (0 if forced else diversity * taken.count(t)), -t))
            if not forced:
                taken.append(token)
            path.append(token)
    return [tuple(path[:-1]) for path in paths]


@pytest.mark.parametrize("diversity", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("pattern", ["[abc]{2}", "c(a|b)c(a|b)c", "(aa|bb)[abc]{2}"])
def test_groups_keep_out_of_each_others_way(pattern: str, diversity: float) -> None:
    """It equals textbook diverse beam search, where all outputs stop only when the grammar says so."""
    for seed in range(6):
        toy = Toy(pattern, 5, seed=seed)
        found = {each.result.tokens for each in toy.samples(Beam(3, groups=3, diversity=diversity)).samples}
        assert found == set(diverse_beams(toy, 3, diversity))


def test_diversity_is_in_no_score() -> None:
    toy = Toy("[abc]{3}", 3, seed=2)
    found = toy.samples(Beam(3, groups=3, diversity=50.0)).samples
    assert len({toy.text(each.result.tokens)[0] for each in found}) > 1
    for each in found:
        assert each.score == pytest.approx(toy.target[each.result.tokens], abs=1e-9)


def test_what_the_grammar_dictates_is_not_avoided() -> None:
    """If it were counted, the second group's next choice could not differ from the first's."""
    toy = Toy("cac(a|b)", 4, seed=0)
    found = toy.samples(Beam(2, groups=2, diversity=50.0)).samples
    assert {each.result.text for each in found} == {"caca", "cacb"}


def test_groups_share_what_they_agree_on() -> None:
    """A little diversity that changes nothing costs no more passes than one group."""
    toy = Toy("[abc]{3}", 3, seed=2)
    one, three = toy.samples(Beam(1)), toy.samples(Beam(3, groups=3, diversity=1e-9))
    assert one.best().tokens == three.best().tokens
    assert len(three.samples) == 1
    assert three.forwards == one.forwards
    assert three.tokens == one.tokens


def test_positive_scores_need_a_bound() -> None:
    toy = Toy("[abc]{1,3}", 3, seed=4, score=lambda text: 2.0 * text.count("c"))
    assert toy.samples(Beam(500, score_bound=6.0)).best().tokens == toy.ranking[0]
    assert toy.samples(Beam(500, score_bound=math.inf)).best().tokens == toy.ranking[0]
    with pytest.raises(GenerationError, match="above score_bound=0"):
        toy.samples(Beam(500))


def test_nothing_is_found_where_all_is_forbidden() -> None:
    assert Toy("[abc]{1,2}", 2, score=lambda text: False).samples(Beam(2)).samples == ()
    with pytest.raises(GenerationError, match="they forbid every output"):
        Toy("[abc]{1,2}", 2, always=lambda text: False).samples(Beam(2))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n must be an integer of at least 1; found 0"),
        ({"groups": 0}, "groups must be"),
        ({"n": 3, "groups": 2, "diversity": 1.0}, "n must be a multiple of groups; found n=3 and groups=2"),
        ({"n": 4, "groups": 2}, "without a diversity all groups find the same"),
        ({"diversity": -1.0}, "diversity must be finite and not negative"),
        ({"length_penalty": math.nan}, "length_penalty must be finite"),
        ({"score_bound": math.nan}, "score_bound must be a number"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"Beam: {message}"):
        Beam(**arguments)


def test_it_says_what_it_is() -> None:
    assert (Beam.lossless, Beam.takes_best) == (False, True)
    assert "most probable" in Beam.target
