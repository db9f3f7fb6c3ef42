"""Constraints in files: what is loaded constrains as what was saved, and nothing else is loaded."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from data_folder import REAL_SCHEMAS, real_schemas
from structgen_kernels import _native

import structgen as sg
from structgen.engine import saved
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.errors import ArgumentError, GrammarError, LimitExceeded, StructgenError, VocabularyError
from structgen.grammar.flattening import flatten
from structgen.grammar.nodes import Choice, Reference, Rules
from structgen.grammar.nodes.description import Described
from structgen.grammar.packing import ByteWriter, sealed
from structgen.models import HashModel

TOKENS: Final = [b"", b"", *(bytes([byte]) for byte in range(256)), b'"a', b'": ', b"11", b"aa", b'{"', b"rt + 1"]
VOCABULARY: Final = sg.Vocabulary(TOKENS, eos=[0], special={1: "<tool>"})
SCHEMA: Final = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 9}, "b": {"type": "integer", "multipleOf": 7}},
    "title": "kept in the report",
}
GRAMMARS: Final[dict[str, Callable[[], sg.Grammar]]] = {
    "schema": lambda: sg.json_schema(SCHEMA),
    "distinct": lambda: sg.json_schema({"type": "array", "uniqueItems": True, "items": {"enum": [1, 2, "a", None]}}),
    "left recursion": lambda: sg.lark('start: start "+" n | n\nn: /[0-9]+/ | "(" start ")"'),
    "plain lark": lambda: sg.lark('start: "a" start? "b"'),
    "composed": lambda: "Answer: " + sg.regex(r"\d{2}").named("n") + sg.optional(sg.json_schema(SCHEMA)),
    "tokens": lambda: sg.grammars.token("<tool>") + sg.json_schema(SCHEMA),
    "budgets": lambda: sg.regex("a+").at_most(tokens=3) + "1",
    "look-around": lambda: sg.regex(r"(?=.*1)[a1]{2,5}") & ~sg.literal("a1"),
    "regex": lambda: sg.regex(r"(?:19|20)\d\d-[01]\d"),
}


def reloaded(constraint: sg.Constraint, folder: Path, **keywords: sg.Limits) -> sg.Constraint:
    constraint.save(folder / "it.constraint")
    return sg.Constraint.load(folder / "it.constraint", constraint.vocabulary, **keywords)


def assert_same_masks(one: sg.Constraint, other: sg.Constraint, seed: int, walks: int = 6) -> None:
    """Compare masks, also within budgets, along random walks."""
    chance = random.Random(seed)
    masks = empty_masks(VOCABULARY, 2)
    for _ in range(walks):
        ours, theirs = one.matcher(), other.matcher()
        for left in range(25, 0, -1):
            budget = left if chance.random() < 0.5 and one.min_tokens() <= 25 else None
            if budget is not None and (ours.min_tokens() or 0) > budget:
                break
            ours.fill_mask(masks, 0, budget=budget)
            theirs.fill_mask(masks, 1, budget=budget)
            assert (masks[0] == masks[1]).all()
            assert ours.is_accepting == theirs.is_accepting
            tokens = [token for token in allowed_ids(masks[0]).tolist() if token not in VOCABULARY.eos]
            if not tokens:
                break
            token = chance.choice(tokens)
            assert ours.accept(token)
            assert theirs.accept(token)


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_loaded_constraint_is_the_saved_one(name: str, tmp_path: Path) -> None:
    """The grammar, the limits, the report and all masks; and it is saved as the same bytes again."""
    limits = sg.Limits(states=123_456)
    constraint = sg.compile(GRAMMARS[name](), VOCABULARY, limits=limits)
    loaded = reloaded(constraint, tmp_path)
    assert_same_masks(constraint, loaded, seed=1)
    assert loaded.limits == limits
    assert loaded.grammar == constraint.grammar
    assert loaded.report.entries == constraint.report.entries
    assert loaded.report.policies == constraint.report.policies
    assert loaded.min_tokens() == constraint.min_tokens()
    assert_same_masks(constraint, loaded.alone(), seed=2, walks=2)
    first = (tmp_path / "it.constraint").read_bytes()
    loaded.save(tmp_path / "it.constraint")
    assert (tmp_path / "it.constraint").read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == ["it.constraint"]


def test_it_accepts_what_others_say(tmp_path: Path) -> None:
    """The language of a loaded pattern is that of ``re``, and a loaded schema writes JSON."""
    loaded = reloaded(sg.compile(GRAMMARS["regex"](), VOCABULARY), tmp_path)
    pattern = re.compile(r"(?:19|20)\d\d-[01]\d")
    for text in ("1999-01", "2024-19", "2124-01", "1999-21", "199-01", ""):
        matcher = loaded.matcher()
        is_member = matcher.accept_bytes(text.encode()) == len(text) and matcher.is_accepting
        assert is_member == (pattern.fullmatch(text) is not None)
    schema = reloaded(sg.compile(GRAMMARS["schema"](), VOCABULARY), tmp_path)
    matcher = schema.matcher()
    written = json.dumps({"a": "a1", "b": 14})
    assert matcher.accept_bytes(written.encode()) == len(written)
    assert matcher.is_accepting
    assert schema.matcher().accept_bytes(json.dumps({"b": 15}).encode()) < len('{"b": 15}')


def test_the_grammar_is_read_on_demand(tmp_path: Path) -> None:
    """Loading builds the terms of the program; the nodes of the grammar are made when somebody asks for them."""
    loaded = reloaded(sg.compile(GRAMMARS["schema"](), VOCABULARY), tmp_path)
    stand_in = loaded._grammar
    assert isinstance(stand_in, Described)
    assert stand_in._item is None
    assert loaded.matcher().accept_bytes(b'{"a": "') == 7
    assert stand_in._item is None
    assert loaded.grammar == GRAMMARS["schema"]()
    assert loaded.grammar is loaded.grammar


def test_results_use_the_grammar_of_a_loaded_constraint(tmp_path: Path) -> None:
    """Captures and values of an output are those of the grammar that was saved."""
    loaded = reloaded(sg.compile(GRAMMARS["composed"](), VOCABULARY), tmp_path)
    result = sg.generate(HashModel(VOCABULARY), "a", loaded, max_tokens=60, sampler=sg.Multinomial(), seed=3)
    written = re.match(r"Answer: (\d\d)", result.text)
    assert written is not None
    assert result.captures["n"] == written.group(1)


def test_a_program_of_another_engine_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the grammar is compiled."""
    constraint = sg.compile(GRAMMARS["left recursion"](), VOCABULARY)
    constraint.save(tmp_path / "c")
    monkeypatch.setattr(saved, "_stamp", lambda: b"another")
    loaded = sg.Constraint.load(tmp_path / "c", VOCABULARY)
    assert loaded._grammar == constraint.grammar
    assert_same_masks(constraint, loaded, seed=3)


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    """Also where it differs only in its EOS."""
    sg.compile(GRAMMARS["regex"](), VOCABULARY).save(tmp_path / "c")
    for other in (
        sg.Vocabulary(list(VOCABULARY.tokens), eos=[1], special={0: "x"}),
        sg.Vocabulary([*VOCABULARY.tokens, b"more"], eos=[0], special={1: "<tool>"}),
    ):
        with pytest.raises(VocabularyError, match="another vocabulary") as caught:
            sg.Constraint.load(tmp_path / "c", other)
        assert VOCABULARY.digest.hex() in caught.value.evidence
    equal = sg.Vocabulary(list(VOCABULARY.tokens), eos=[0], special={1: "<tool>"})
    assert sg.Constraint.load(tmp_path / "c", equal).vocabulary is equal


def test_limits_of_the_caller(tmp_path: Path) -> None:
    """Limits that are given replace those of the file, for compiling too."""
    sg.compile(sg.regex("(a|1){50}[a-z]{9}"), VOCABULARY, limits=sg.Limits(steps=10**9)).save(tmp_path / "c")
    strict = sg.Limits.strict()
    assert sg.Constraint.load(tmp_path / "c", VOCABULARY, limits=strict).limits is strict
    few = sg.Constraint.load(tmp_path / "c", VOCABULARY, limits=sg.Limits(states=2))
    with pytest.raises(LimitExceeded, match="states=2"):
        few.matcher().accept_bytes(b"a" * 52)


def test_wrong_arguments(tmp_path: Path) -> None:
    """What is no file, no vocabulary or no limits."""
    sg.compile(GRAMMARS["regex"](), VOCABULARY).save(tmp_path / "c")
    with pytest.raises(OSError, match="nowhere"):
        sg.Constraint.load(tmp_path / "nowhere", VOCABULARY)
    with pytest.raises(ArgumentError, match="expected a Vocabulary"):
        sg.Constraint.load(tmp_path / "c", "gpt2")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="expected Limits"):
        sg.Constraint.load(tmp_path / "c", VOCABULARY, limits=9)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="nowhere"):
        sg.compile(GRAMMARS["regex"](), VOCABULARY).save(tmp_path / "nowhere" / "c")


def test_other_and_damaged_files_are_refused(tmp_path: Path) -> None:
    """Foreign, cut, newer files, and any changed byte: one kind of error."""
    path = tmp_path / "c"
    sg.compile(GRAMMARS["composed"](), VOCABULARY).save(path)
    whole = path.read_bytes()
    newer = whole.replace(b"constraint\n\2", b"constraint\n\3", 1)
    cut = [whole[:length] for length in range(0, len(whole), len(whole) // 50)]
    changed = []
    for at in range(0, len(whole), len(whole) // 90):
        data = bytearray(whole)
        data[at] ^= 1 << at % 8
        changed.append(bytes(data))
    for data in (GRAMMARS["composed"]().to_bytes(), b"{}", whole + b"\0", newer, *cut, *changed):
        path.write_bytes(data)
        with pytest.raises(GrammarError) as caught:
            sg.Constraint.load(path, VOCABULARY)
        assert caught.value.subject == "saved constraint"
        is_ours = data.startswith(saved._MAGIC)
        assert ("newer" in caught.value.problem) == (is_ours and data[len(saved._MAGIC) :][:1] > b"\2")


def test_files_of_version_1_are_read(tmp_path: Path) -> None:
    """They have a content hash instead of a sum, and are refused where it differs."""
    path = tmp_path / "c"
    sg.compile(GRAMMARS["composed"](), VOCABULARY).save(path)
    payload = path.read_bytes()[len(saved._MAGIC) + 5 :]
    path.write_bytes(sealed(saved._MAGIC, 1, payload))
    assert sg.Constraint.load(path, VOCABULARY).grammar == GRAMMARS["composed"]()
    path.write_bytes(sealed(saved._MAGIC, 1, payload)[:-1] + b"?")
    with pytest.raises(GrammarError, match="it is damaged"):
        sg.Constraint.load(path, VOCABULARY)


def test_forged_files_end_in_an_error_or_a_constraint(tmp_path: Path) -> None:
    """With any bytes of the payload changed and a sum that fits: no crash, bounded work."""
    chance = random.Random(5)
    path = tmp_path / "c"
    sg.compile(GRAMMARS["composed"](), VOCABULARY).save(path)
    payload = path.read_bytes()[len(saved._MAGIC) + 5 :]
    bounds = sg.Limits(states=2_000, regular_states=2_000, steps=200_000, distance_steps=2_000, cache_bytes=1 << 20)
    outcomes = {True: 0, False: 0}
    for _ in range(120):
        data = bytearray(payload)
        for _ in range(chance.randint(1, 3)):
            data[chance.randrange(40, len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(sealed(saved._MAGIC, 2, bytes(data), summed_from=2))
        try:
            loaded = sg.Constraint.load(path, VOCABULARY, limits=bounds)
            loaded.matcher().fill_mask(empty_masks(VOCABULARY))
            assert isinstance(loaded.grammar, sg.Grammar)
            outcomes[True] += 1
        except StructgenError:
            outcomes[False] += 1
    assert min(outcomes.values()) > 5


def meaning(program: _native.FlatGrammar, numbers: dict[object, int]) -> tuple[int, dict[int, int]]:
    """What the result of a program is made of, and the bodies of its rules, by numbers of what is equal."""
    made: list[int] = []
    bodies: dict[int, int] = {}
    for kind, decoded, parts, low, high, required in program.instructions:
        of = parts if kind in (LITERAL, BYTES, CHARS) else tuple(made[part] for part in parts)
        made.append(numbers.setdefault((kind, decoded, of, low, high, required), len(numbers)))
        if kind == SET_RULE:
            bodies[low] = made[-1]
    return made[program.result], bodies


LITERAL, BYTES, CHARS, SET_RULE = 0, 1, 2, 13  # as program.h counts them


@pytest.mark.parametrize("name", [name for name in GRAMMARS if name != "tokens"])
def test_a_packed_program_means_the_same(name: str) -> None:
    """What is read has the same parts, and no two equal instructions."""
    flat = flatten(GRAMMARS[name](), {}, VOCABULARY, 10_000)
    read = _native.FlatGrammar.from_bytes(flat.to_bytes())
    numbers: dict[object, int] = {}
    assert meaning(read, numbers) == meaning(flat, numbers)
    assert read.rules == flat.rules
    assert read.to_bytes() == flat.to_bytes()
    assert len(set(read.instructions)) == read.size <= flat.size


def test_a_left_recursive_program_is_refused(tmp_path: Path) -> None:
    """What ``save`` never writes: it removes left recursion."""
    recursive = Rules({"r": Reference("r") + "a" | sg.literal("b")}, Reference("r"))
    flat = flatten(recursive, {}, VOCABULARY, 10_000)
    for distances in ([], [1], [2]):
        write(tmp_path / "c", recursive, flat, distances)
        with pytest.raises(GrammarError, match="saved constraint: it is damaged; its program is left-recursive"):
            sg.Constraint.load(tmp_path / "c", VOCABULARY)


def write(path: Path, grammar: sg.Grammar, program: _native.FlatGrammar, distances: list[int]) -> None:
    size = VOCABULARY.size
    saved.write_constraint(path, grammar, (program, distances), sg.Limits(), digest=VOCABULARY.digest, size=size)


INFINITE: Final = 2**31 - 1  # as term.h has it, for a rule without strings
A: Final = sg.literal("a")
RECURSIVE: Final = [  # rules, and the lengths of their shortest strings, found by hand
    ({"r": "a" + Reference("r") | "aa", "s": "1" + Reference("r")}, [2, 3]),
    ({"r": A + Reference("s") | A, "s": sg.optional(Reference("r"))}, [1, 0]),
    ({"r": Reference("s") + "a", "s": Reference("t") | "111", "t": "a" + Reference("r") + "1" | "11"}, [3, 2, 2]),
    ({"r": A + Reference("r"), "s": Reference("r") | "1"}, [INFINITE, 1]),
    (
        {"r": A.many(0, 1) + "1" + Reference("s"), "s": Reference("t").many(2, 3), "t": A | "1" + Reference("r")},
        [3, 2, 1],
    ),
]


@pytest.mark.parametrize(("rules", "lengths"), RECURSIVE)
def test_only_true_lengths_are_taken(rules: dict[str, sg.Grammar], lengths: list[int], tmp_path: Path) -> None:
    """Of all lengths that a forged file may give to rules, only the lengths of their shortest strings."""
    grammar = Rules(rules, Choice([Reference(name) for name in rules]))
    flat = flatten(grammar, {}, VOCABULARY, 10_000)
    order = [list(rules).index(name) for name in flat.rules]
    taken = []
    for claimed in itertools.product((0, 1, 2, 3, 4, INFINITE), repeat=len(rules)):
        write(tmp_path / "c", grammar, flat, [claimed[at] for at in order])
        try:
            loaded = sg.Constraint.load(tmp_path / "c", VOCABULARY)
        except GrammarError as error:
            assert "its program is left-recursive, or tells other lengths than it has" in str(error)  # noqa: PT017
            continue
        taken.append(list(claimed))
        assert_same_masks(sg.compile(grammar, VOCABULARY), loaded, seed=4, walks=2)
    assert taken == [lengths]
    assert "a length for each rule is needed" in _refusal(flat, [1] * (len(rules) + 1))
    assert "damaged" in _refusal(flat, [INFINITE + 1] * len(rules))


def _refusal(program: _native.FlatGrammar, lengths: list[int]) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        _native.FlatGrammar.from_bytes(program.to_bytes(lengths))
    return str(caught.value)


def packed(instructions: bytes, count: int, operands: int) -> bytes:
    """A packed program without rules, ranges and text, whose result is its last instruction."""
    return bytes([count, operands, 0, 0, 0, 0, count - 1]) + instructions


def packed_class(steps: tuple[int, ...]) -> bytes:
    """A packed program that is a class of characters, of differences of the bounds of its ranges."""
    numbers = ByteWriter()
    for number in (1, 0, len(steps) // 2, 0, 0, 0, 0, CHARS, len(steps) // 2, *steps):
        numbers.number(number)
    return bytes(numbers.data)


def test_unsound_programs_are_refused() -> None:
    """Cut or made up: an error before anything is made of them, in memory that the bytes bound."""
    whole = flatten(GRAMMARS["composed"](), {}, VOCABULARY, 10_000).to_bytes()
    empty, negation = b"\5\0", b"\x0a\1"  # a sequence of nothing; what is not the instruction before
    assert _native.FlatGrammar.from_bytes(packed(empty + negation * 64, 65, 64)).size == 65
    assert _native.FlatGrammar.from_bytes(packed_class((5, 3, 1, 4))).size == 1
    claims = [b"\xff\xff\xff\xff\x0f" * at + bytes(7 - at) for at in range(1, 8)]
    cut = [whole[:length] for length in range(0, len(whole), 9)]
    for data in (
        *cut,
        *claims,
        whole + b"\0",
        packed(empty + negation * 65, 66, 65),  # nested too deeply
        packed(b"\5\1\0", 1, 1),  # a part of itself
        packed(b"\5\1\2", 1, 1),  # made of what is before the first
        packed(b"\x0c\0", 1, 0),  # calls a rule that is not there
        packed(b"\3\1", 1, 0),  # names a token
        packed_class((5, 3, 0, 4)),  # ranges that have a character in common
        packed_class((5, 3, 2**32 - 2, 4)),  # and ranges out of order
        packed(b"\x1f\0", 1, 0),  # no instruction
        packed(empty, 2, 0),
    ):
        with pytest.raises(ValueError, match=r"damaged|cut short|no end"):
            _native.FlatGrammar.from_bytes(data)
    with pytest.raises(LimitExceeded, match="grammar_nodes=20 "):
        _native.FlatGrammar.from_bytes(whole, 20)


@pytest.mark.nightly
def test_loading_the_largest_schemas_is_fast(
    shared_data: Path, tmp_path: Path, deepseek_vocabulary: sg.Vocabulary
) -> None:
    """Loading takes at most half the time of reading the schema and compiling it, for the largest real schemas."""
    if not (shared_data / REAL_SCHEMAS).is_file():
        pytest.skip("the real schemas are not there")
    rows = sorted(real_schemas(shared_data), key=lambda row: -len(json.dumps(row["schema"])))
    for row in (rows[0], rows[3]):
        text = json.dumps(row["schema"])
        times: dict[str, list[float]] = {"compile": [], "load": []}
        for _ in range(5):
            sg.clear_caches()
            sg.compile(sg.regex("a"), deepseek_vocabulary)
            began = time.process_time()
            constraint = sg.compile(sg.json_schema(text), deepseek_vocabulary)
            times["compile"].append(time.process_time() - began)
            constraint.save(tmp_path / "c")
            sg.clear_caches()
            sg.compile(sg.regex("a"), deepseek_vocabulary)
            began = time.process_time()
            loaded = sg.Constraint.load(tmp_path / "c", deepseek_vocabulary)
            times["load"].append(time.process_time() - began)
            masks = np.zeros((2, (deepseek_vocabulary.size + 31) // 32), dtype=np.int32)
            constraint.matcher().fill_mask(masks, 0)
            loaded.matcher().fill_mask(masks, 1)
            assert (masks[0] == masks[1]).all()
        assert min(times["load"]) < min(times["compile"]) / 2
