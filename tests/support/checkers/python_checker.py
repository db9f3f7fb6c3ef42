"""Python: the parser of the interpreter, and the files of its library."""

from __future__ import annotations

import ast
import io
import random
import re
import sys
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

from checked_language import Language

MAX_BYTES = 12_000
STEP = 4
# The fields of formatted strings in most files; README.md says what else they may hold.
FIELD = re.compile(r"\{\{|\}\}|\{ ?[\w.]+(\([\w., ]*\)|\[\w+\])?(![rsa])?(:[^{}\"'\\]*)? ?\}")


def problem(text: str) -> str | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError) as error:
        found = str(error)
        return None if any(gap in found for gap in GAPS) else f"{type(error).__name__}: {found}"
    return None


# Known gaps, as README.md lists them.
GAPS = ("keyword argument repeated", "unicode error", "value error", "escape sequence")


def is_covered(text: str) -> bool:
    """Whether a file has nothing that README.md excludes, judged by its tokens."""
    before, stack = None, [0]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.INDENT:
            if token.string != " " * (stack[-1] + STEP):
                return False
            stack.append(len(token.string))
        elif token.type == tokenize.DEDENT:
            stack.pop()
        elif token.type == tokenize.STRING:
            prefix = token.string[: re.search("['\"]", token.string).start()].lower()  # type: ignore[union-attr]
            if "f" in prefix and re.search(r"[{}\\]", FIELD.sub("", token.string)):
                return False
            if (
                before is not None
                and before.type == tokenize.STRING
                and before.string.lower().lstrip("bfru") in ("''", '""')
            ):
                return False
        elif (
            before is not None
            and before.type == tokenize.NUMBER
            and (token.type == tokenize.NAME or token.string in (".", "(", "["))
        ):
            return False
        if not token.string.isascii() and token.type == tokenize.NAME:
            return False
        if token.type not in (tokenize.NL, tokenize.COMMENT):
            before = token
    assigned = (node for node in ast.walk(ast.parse(text)) if isinstance(node, (ast.AnnAssign, ast.AugAssign)))
    if any(node.target.col_offset > node.col_offset for node in assigned):
        return False  # a single target in parentheses
    return text.endswith("\n") and "\f" not in text


def documents(rng: random.Random) -> Iterator[str]:
    folder = Path(sys.base_prefix) / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    paths = sorted(path for path in folder.rglob("*.py") if path.stat().st_size <= MAX_BYTES)
    rng.shuffle(paths)
    for path in paths:
        try:
            text = path.read_bytes().decode().replace("\r\n", "\n")
            if problem(text) is None and is_covered(text):
                yield text
        except (UnicodeDecodeError, tokenize.TokenError, IndentationError):
            continue


LANGUAGE = Language(problem, documents, alphabet=" \n:=()[]{}.,'\"\\#*")
