"""Games of chess: the package ``chess``, which also plays legal games at random."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import chess
from checked_language import Language

RESULTS = {"1-0", "0-1", "1/2-1/2", "*"}


def problem(text: str) -> str | None:
    words = text.split(" ")
    if words[-1] in RESULTS:
        words.pop()
    if not words:
        return "no moves"
    for place, word in enumerate(words):
        if place % 3 == 0:
            if not re.fullmatch(r"[1-9][0-9]{0,2}\.", word):
                return f"{word!r} is no number"
        elif not is_move(word):
            return f"{word!r} is no move"
    return None if len(words) % 3 != 1 else "a number without a move"


def is_move(word: str) -> bool:
    """Whether the package reads it as a move in some position, and pawns move as pawns do."""
    if chess.SAN_REGEX.fullmatch(word) is None:
        return word.rstrip("+#") in ("O-O", "O-O-O")
    promotes = re.match(r"([a-h]x)?[a-h][18]", word) is not None
    if ("=" in word) is not promotes or "=K" in word:
        return False
    takes = re.match(r"([a-h])x([a-h])", word)
    return takes is None or abs(ord(takes[1]) - ord(takes[2])) == 1


def covers(text: str) -> bool:
    # The package's expression also accepts pawn moves with hyphens and whole squares.
    return all(
        re.match(r"[KQRBNO0-9*]|[a-h](x[a-h])?[1-8]", word) and "-" not in word.strip("O-0/12")
        for word in text.split(" ")
    )


def documents(rng: random.Random) -> Iterator[str]:
    while True:
        board, moves = chess.Board(), []
        while not board.is_game_over(claim_draw=False) and len(moves) < rng.randint(1, 60):
            moves.append(rng.choice(list(board.legal_moves)))
            board.push(moves[-1])
        yield chess.Board().variation_san(moves) + (f" {board.result()}" if rng.random() < 0.5 else "")


LANGUAGE = Language(problem, documents)
