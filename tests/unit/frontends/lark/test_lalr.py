"""The tables of the LALR(1) generator against those of Lark's own, state by state."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lark as peer
import pytest
from lark.common import ParserConf
from lark.load_grammar import load_grammar
from lark.parsers.lalr_analysis import LALR_Analyzer

from structgen.errors import LimitExceeded
from structgen.frontends.lark.lalr import bits, make_lalr, number_rules
from structgen.grammar.limits import Limits, counted

GRAMMARS = Path(__file__).resolve().parents[4] / "grammars"
# After "w" a rule of b is begun and b may begin anew; Lark looks ahead at the "z" after the second b in both.
INSIDE = 'start: b | "w" b "z" | "w" "c" "k"\nb: "w" c | "v"\nc: "c"\n'


@pytest.fixture(autouse=True)
def _unchecked_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lark.lexer.has_interegular", False)


def rules_of(text: str) -> list[Any]:
    load: Any = load_grammar
    grammar, _ = load(text, "<string>", [], False)
    return list(grammar.compile(["start"], set())[1])


def assert_same_table(rules: list[Any]) -> bool:
    """Compare; return whether the grammar is LALR(1). Others are refused, so only their states are compared."""
    theirs: Any = LALR_Analyzer(ParserConf(rules, {}, ["start"]))
    theirs.compute_lr0_states()
    theirs.compute_reads_relations()
    theirs.compute_includes_lookback()
    theirs.compute_lookaheads()
    numbered = number_rules(rules, "start")
    ours = make_lalr(numbered, None)
    number = {rule: index for index, rule in enumerate(rules)}
    (first,) = theirs.lr0_start_states.values()
    states = {first: 0}
    queue = [first]
    looked: list[tuple[set[tuple[int, str]], set[tuple[int, str]]]] = []
    for state in queue:
        index = states[state]
        row = {numbered.symbols[symbol]: target for symbol, target in ours.goto[index].items()}
        assert row.keys() == {(str(symbol.name), bool(symbol.is_term)) for symbol in state.transitions}
        for symbol, target in state.transitions.items():
            found = row[str(symbol.name), bool(symbol.is_term)]
            if target not in states:
                states[target] = found
                queue.append(target)
            assert states[target] == found
        reduced = {
            (rule, numbered.symbols[numbered.first_terminal + bit][0])
            for rule, mask in ours.reductions[index].items()
            for bit in bits(mask)
        }
        expected = {(number[rule], str(symbol.name)) for symbol, each in state.lookaheads.items() for rule in each}
        looked.append((reduced, expected))
    assert len(states) == len(ours.goto) == len(set(states.values()))
    try:
        theirs.compute_lalr1_states()
    except peer.exceptions.GrammarError:
        return False
    assert all(reduced == expected for reduced, expected in looked)
    return True


def test_tables_of_real_grammars() -> None:
    """The library's grammars, imports and conflicts included."""
    for name in ("graphql", "toml", "sql_select", "regex"):
        assert assert_same_table(rules_of((GRAMMARS / name / "grammar.lark").read_text(encoding="utf-8")))
    assert assert_same_table(rules_of(INSIDE))


def test_tables_of_random_grammars() -> None:
    """Empty rules, recursion of all kinds, shift/reduce conflicts."""
    chance = random.Random(27)
    tables = 0
    for _ in range(120):
        names = ["start", "a", "b", "c"][: chance.randint(2, 4)]
        text = 'X: "x"\nY: "y"\n'
        for name in names:
            length = [chance.randint(0, 3) for _ in range(chance.randint(1, 3))]
            alternatives = dict.fromkeys(" ".join(chance.choices([*names, "X", "Y"], k=k)) for k in length)
            text += f"{name}: {' | '.join(alternatives)}\n"
        try:
            rules = rules_of(text)
        except peer.exceptions.LarkError:
            continue
        tables += assert_same_table(rules)
    assert tables > 20


def test_the_table_is_counted() -> None:
    """Named in the error with what was made; without a subject the caller is not charged."""
    numbered = number_rules(rules_of((GRAMMARS / "graphql" / "grammar.lark").read_text(encoding="utf-8")), "start")
    with counted(Limits(steps=10_000)), pytest.raises(LimitExceeded, match=r"its parser has|the states of its parser"):
        make_lalr(numbered, "lark grammar")
    with counted(Limits(steps=1)):
        assert make_lalr(numbered, None).goto
