"""The rules of chess, as far as a game of some moves needs them: legal moves and how they are written down.

Squares are counted from a1 = 0 to h8 = 63, row by row; pieces are letters, White's in capitals.  What is left out is
what ends a game as a draw: repetition, fifty moves, too few pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

START: Final = "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"
_STRAIGHT: Final = ((0, 1), (1, 0), (0, -1), (-1, 0))
_DIAGONAL: Final = ((1, 1), (1, -1), (-1, -1), (-1, 1))
_STEPS: Final = {
    "N": ((1, 2), (2, 1), (2, -1), (1, -2), (-1, -2), (-2, -1), (-2, 1), (-1, 2)),
    "B": _DIAGONAL,
    "R": _STRAIGHT,
    "Q": _STRAIGHT + _DIAGONAL,
    "K": _STRAIGHT + _DIAGONAL,
}
_CORNERS: Final = {0: "Q", 7: "K", 56: "q", 63: "k"}


@dataclass(frozen=True)
class Move:
    """A piece goes from ``origin`` to ``target``; a pawn at the end becomes ``promotion``."""

    origin: int
    target: int
    promotion: str = ""


@dataclass(frozen=True)
class Board:
    """A position.

    Attributes:
        squares: the piece on each, ``""`` where there is none.
        white: whether White is to move.
        castling: who may still castle where, of ``"KQkq"``.
        passed: the square that a pawn has just passed over, if any.
    """

    squares: tuple[str, ...]
    white: bool
    castling: str
    passed: int | None

    @classmethod
    def of(cls, text: str = START) -> Board:
        """Read a position in Forsyth-Edwards notation."""
        rows, turn, castling, passed = text.split()[:4]
        squares: list[str] = []
        for row in reversed(rows.split("/")):
            for sign in row:
                squares += [""] * int(sign) if sign.isdigit() else [sign]
        return cls(tuple(squares), turn == "w", castling, None if passed == "-" else _NAMES.index(passed))

    def __str__(self) -> str:
        rows = [" ".join(piece or "." for piece in self.squares[at : at + 8]) for at in range(56, -1, -8)]
        return "\n".join(f"{8 - at} {row}" for at, row in enumerate(rows)) + "\n  a b c d e f g h"

    @property
    def in_check(self) -> bool:
        """Whether the king of the side to move is attacked."""
        return self._attacked(self.squares.index("K" if self.white else "k"))

    def moves(self) -> dict[str, Move]:
        """The legal moves by their names in standard algebraic notation."""
        legal = self.legal()
        return {self._name(move, legal): move for move in legal}

    def legal(self) -> list[Move]:
        """The legal moves."""
        return [move for move in self._possible() if not replace(self.after(move), white=self.white).in_check]

    def after(self, move: Move) -> Board:
        """The position after a move."""
        squares = list(self.squares)
        piece, squares[move.origin] = squares[move.origin], ""
        squares[move.target] = (move.promotion if self.white else move.promotion.lower()) or piece
        passed = None
        if piece in "Pp":
            if move.target == self.passed:
                squares[move.target + (-8 if self.white else 8)] = ""
            if abs(move.target - move.origin) == 16:
                passed = (move.origin + move.target) // 2
        elif piece in "Kk" and abs(move.target - move.origin) == 2:
            corner, beside = (3, -1) if move.target > move.origin else (-4, 1)
            squares[move.target + beside], squares[move.origin + corner] = squares[move.origin + corner], ""
        lost = {_CORNERS.get(move.origin), _CORNERS.get(move.target)}
        if piece in "Kk":
            lost |= set("KQ" if self.white else "kq")
        castling = "".join(side for side in self.castling if side not in lost)
        return Board(tuple(squares), not self.white, castling, passed)

    def _name(self, move: Move, legal: list[Move]) -> str:
        piece = self.squares[move.origin].upper()
        takes = "x" if self.squares[move.target] or (piece == "P" and move.target == self.passed) else ""
        after = self.after(move)
        end = ("+" if after.legal() else "#") if after.in_check else ""
        if piece == "K" and abs(move.target - move.origin) == 2:
            return ("O-O" if move.target > move.origin else "O-O-O") + end
        if piece == "P":
            start = _NAMES[move.origin][0] if takes else ""
            return start + takes + _NAMES[move.target] + (f"={move.promotion}" if move.promotion else "") + end
        others = [
            other.origin
            for other in legal
            if other.target == move.target
            and other.origin != move.origin
            and self.squares[other.origin] == self.squares[move.origin]
        ]
        start = ""
        if others:
            file, row = _NAMES[move.origin]
            if all(_NAMES[other][0] != file for other in others):
                start = file
            else:
                start = row if all(_NAMES[other][1] != row for other in others) else file + row
        return piece + start + takes + _NAMES[move.target] + end

    def _possible(self) -> Iterator[Move]:
        """The moves, those that leave the king in check among them."""
        for origin, piece in enumerate(self.squares):
            if not piece or piece.isupper() != self.white:
                continue
            if piece in "Pp":
                yield from self._of_pawn(origin)
                continue
            for target in self._reached(origin, piece.upper()):
                if not self.squares[target] or self.squares[target].isupper() != self.white:
                    yield Move(origin, target)
        yield from self._castlings()

    def _of_pawn(self, origin: int) -> Iterator[Move]:
        ahead = 8 if self.white else -8
        targets = [] if self.squares[origin + ahead] else [origin + ahead]
        if targets and origin // 8 == (1 if self.white else 6) and not self.squares[origin + 2 * ahead]:
            targets.append(origin + 2 * ahead)
        for aside in (-1, 1):
            target = origin + ahead + aside
            if 0 <= origin % 8 + aside < 8:
                taken = self.squares[target]
                if target == self.passed or (taken and taken.isupper() != self.white):
                    targets.append(target)
        for target in targets:
            for promotion in "QRBN" if target // 8 in (0, 7) else ("",):
                yield Move(origin, target, promotion)

    def _castlings(self) -> Iterator[Move]:
        for side in self.castling.replace("-", ""):
            if side.isupper() != self.white:
                continue
            king = 4 if self.white else 60
            between, path = ((1, 2), (0, 1, 2)) if side in "Kk" else ((-1, -2, -3), (0, -1, -2))
            is_free = not any(self.squares[king + step] for step in between)
            if is_free and not any(self._attacked(king + step) for step in path):
                yield Move(king, king + path[-1])

    def _reached(self, origin: int, kind: str) -> Iterator[int]:
        """The squares that a piece other than a pawn sees, the first on each line that is not empty included."""
        for across, up in _STEPS[kind]:
            file, row = origin % 8 + across, origin // 8 + up
            while 0 <= file < 8 and 0 <= row < 8:
                yield 8 * row + file
                if self.squares[8 * row + file] or kind in "NK":
                    break
                file, row = file + across, row + up

    def _attacked(self, target: int) -> bool:
        """Whether the side that is not to move attacks a square."""
        for kind in _STEPS:
            enemy = kind.lower() if self.white else kind
            if any(self.squares[origin] == enemy for origin in self._reached(target, kind)):
                return True
        ahead, pawn = (8, "p") if self.white else (-8, "P")
        return any(
            0 <= target % 8 + aside < 8
            and 0 <= target + ahead + aside < 64
            and self.squares[target + ahead + aside] == pawn
            for aside in (-1, 1)
        )


_NAMES: Final = [file + row for row in "12345678" for file in "abcdefgh"]
