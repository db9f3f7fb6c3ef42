"""Patterns: ``re.compile``, and the patterns in the source of Python's library."""

from __future__ import annotations

import ast
import random
import re
import sysconfig
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import html5lib
import markdown_it
import pip
import sqlglot
from checked_language import Language

LEFT_OUT = re.compile(
    r"\\[0-9NuU]|\(\?P[=>]|\(\?\(|\(\?[a-zA-Z]*[xauL]|\{,?\}|\[\^?\]|(?<!\\)\{(?![0-9,])|\{[^}]*[^0-9,}]"
    r"|\(\?P<[^>]*[^\x00-\x7f]|\{[0-9,]*[0-9]{4}|\(\?[a-z]*-[a-z]*x"
    r"|(?<!^\()(?<!^)\(\?[a-zA-Z]+\)|\[[^]]*[^]^[]-[^]]"
)
"""Constructs that README.md leaves out, and unusual ranges, found too often rather than too rarely."""
FOLDERS = ("", "email/", "html/", "http/", "json/", "logging/", "xml/*/", "distutils/", "idlelib/", "importlib/*/")
USUAL_RANGES = re.compile("a-z|A-Z|0-9|a-f|A-F|0-7|1-9|0-1")


def parse(text: str) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # brackets in classes may change their meaning in future versions
        return re.compile(text)


def problem(text: str) -> str | None:
    try:
        parse(text)
    except re.error as error:
        return None if "redefinition of group name" in str(error) else str(error)
    except OverflowError as error:
        return str(error)
    return None


STRING = r"""r?(?:"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
CALL = re.compile(
    rf"\bre\.(?:compile\(\s*({STRING})\s*\)|(?:search|match|fullmatch|sub|split|findall)\(\s*({STRING})\s*,)"
)


@cache
def patterns() -> tuple[str, ...]:
    """The strings that are passed to functions of ``re``, except those that README.md excludes."""
    library = Path(sysconfig.get_path("stdlib"))
    paths = [path for folder in FOLDERS for path in library.glob(f"{folder}*.py")]
    for package in (html5lib, markdown_it, pip, sqlglot):
        paths += Path(package.__path__[0]).rglob("*.py")
    found = set()
    for path in paths:
        for call in CALL.finditer(path.read_text("utf-8", "replace")):
            found.add(ast.literal_eval(call[1] or call[2]))
    usable = [text for text in found if problem(text) is None and not LEFT_OUT.search(USUAL_RANGES.sub("", text))]
    return tuple(sorted(usable))


def documents(rng: random.Random) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from rng.sample(patterns(), len(patterns()))


LANGUAGE = Language(problem, documents)
