"""The parts of the example programs, checked without a model."""

from __future__ import annotations

import importlib
import random
import re
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest
from byte_membership import BYTES, random_member

from structgen.engine import compile
from structgen.frontends.lark import lark

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "programs"

# Published numbers of leaves of the tree of legal moves (https://www.chessprogramming.org/Perft_Results).
LEAVES = [
    ("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1", [20, 400, 8902]),
    ("r3k2r/p1ppqpb1/bn2pnp1/3PN3/1p2P3/2N2Q1p/PPPBBPPP/R3K2R w KQkq - 0 1", [48, 2039]),
    ("8/2p5/3p4/KP5r/1R3p1k/8/4P1P1/8 w - - 0 1", [14, 191, 2812]),
    ("r3k2r/Pppp1ppp/1b3nbN/nP6/BBP1P3/q4N2/Pp1P2PP/R2Q1RK1 w kq - 0 1", [6, 264, 9467]),
    ("rnbq1k1r/pp1Pbppp/2p5/8/2B5/8/PPP1NnPP/RNBQK2R w KQ - 1 8", [44, 1486]),
]
NAMES = [
    ("rnbqkb1r/pppp1ppp/5n2/4p2Q/2B1P3/8/PPPP1PPP/RNB1K1NR w KQkq - 0 1", {"Qxf7#", "Bxf7+", "Nh3", "d4"}),
    ("4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1", {"O-O", "O-O-O", "Ra8+", "Ke2"}),
    ("4k3/P7/8/3pP3/8/8/8/4K3 w - d6 0 1", {"a8=Q+", "a8=N", "exd6", "e6"}),
    ("4k3/8/8/8/R6R/8/8/R3K3 w - - 0 1", {"R4a3", "Rad4", "Rhd4", "R1a3", "Rd1"}),
    ("7k/8/8/1Q3Q2/8/8/8/1Q2K3 w - - 0 1", {"Qb5d3", "Qfd3", "Q1d3"}),
]


def _module(name: str) -> Any:
    if not FOLDER.is_dir():
        pytest.skip(f"the examples are not beside the tests: no {FOLDER}")
    sys.path.insert(0, str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FOLDER))


def _leaves(board: Any, depth: int) -> int:
    legal = board.legal()
    return len(legal) if depth == 1 else sum(_leaves(board.after(move), depth - 1) for move in legal)


@pytest.mark.parametrize(("position", "counts"), LEAVES)
def test_moves_of_chess_are_counted_as_published(position: str, counts: list[int]) -> None:
    board = _module("support.chess_rules").Board.of(position)
    assert [_leaves(board, depth + 1) for depth in range(len(counts))] == counts


@pytest.mark.parametrize(("position", "names"), NAMES)
def test_moves_of_chess_have_their_names(position: str, names: set[str]) -> None:
    board = _module("support.chess_rules").Board.of(position)
    moves = board.moves()
    assert names <= moves.keys()
    assert len(moves) == len(board.legal()), "no two moves have one name"


def _library() -> tuple[sqlite3.Connection, str]:
    program = _module("sql")
    library = program.open_library()
    return library, program.grammar_of(library)


def test_every_query_of_the_grammar_is_executed() -> None:
    """SQLite runs random strings of the grammar, among them every part that a query may have."""
    library, text = _library()
    start = compile(lark(text), BYTES).matcher()
    rng = random.Random(0)
    seen: set[str] = set()
    for _ in range(1500):
        query = random_member(start, rng, 200).decode()
        library.execute(query).fetchall()
        seen |= set(re.findall(r"JOIN|WHERE|GROUP BY|ORDER BY|LIMIT|AND|OR|AVG|MIN|MAX|COUNT|\*", query))
    assert len(seen) == 12


def test_the_grammar_knows_the_catalogue() -> None:
    """Other tables and columns give other queries."""
    program = _module("sql")
    library = sqlite3.connect(":memory:")
    library.executescript(
        "CREATE TABLE makers (id INTEGER PRIMARY KEY, name TEXT);"
        "CREATE TABLE tools (id INTEGER PRIMARY KEY, label TEXT, maker INTEGER REFERENCES makers (id));"
        "INSERT INTO makers VALUES (1, 'O''Hara \"& Sons\\');"
        "INSERT INTO tools VALUES (1, 'saw', 1);"
    )
    start = compile(lark(program.grammar_of(library)), BYTES).matcher()
    for query, is_member in {
        "SELECT label FROM tools WHERE label = 'saw'": True,
        "SELECT name FROM makers WHERE name = 'O''Hara \"& Sons\\'": True,
        "SELECT tools.label, COUNT(*) FROM tools JOIN makers ON tools.maker = makers.id GROUP BY tools.label": True,
        "SELECT name FROM tools": False,
        "SELECT label FROM tools WHERE label = 3": False,
        "SELECT label FROM books": False,
        "SELECT tools.label FROM tools JOIN makers ON tools.id = makers.id": False,
        "DROP TABLE tools": False,
    }.items():
        start.reset()
        accepted = start.accept_bytes(query.encode()) == len(query.encode()) and start.is_accepting
        assert accepted is is_member, query
        if is_member:
            assert library.execute(query).fetchall(), query
