"""Chess: the model goes on with a game, and the grammar of each move is the list of the legal ones.

A small model has read some openings and sees no threats: its moves are legal, and seldom good.
"""

from collections.abc import Generator
from typing import Any

from support.chess_rules import Board

import structgen as sg

OPENING = ("d4", "d5")
PLIES = 8


@sg.program(chat=False, max_tokens=8)
def game(opening: tuple[str, ...], plies: int) -> Generator[Any, Any, tuple[Board, list[str]]]:
    yield '[Event "World Championship"]\n[White "Kasparov"]\n[Black "Karpov"]\n\n'
    board, names = Board.of(), list[str]()
    while len(names) < plies:
        legal = board.moves()
        if not legal:
            break  # mate, or stalemate
        yield f"{' ' if names else ''}{len(names) // 2 + 1}." if board.white else ""
        if len(names) < len(opening):
            name = opening[len(names)]
            yield f" {name}"
        else:
            name = (yield sg.select([f" {name}" for name in legal])).strip()
        names.append(name)
        board = board.after(legal[name])
    return board, names


if __name__ == "__main__":
    run = game.run(OPENING, PLIES)
    board, names = run.value
    before = Board.of()
    written = iter(run.outcomes)
    for at, name in enumerate(names):
        legal = before.moves()
        note = "given"
        if at >= len(OPENING):
            note = f"probability {next(written).fields[0].probability:.2f} among {len(legal)} legal moves"
        print(f"{at // 2 + 1}.{'' if before.white else '..'} {name:6} {note}")
        before = before.after(legal[name])
    print(board)
