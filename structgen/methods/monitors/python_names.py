r"""Existing attributes and names of Python code, resolved by jedi: monitors for generated Python.

>>> attributes = python_attributes("path/to/project", before="from shop import Order\n")          # doctest: +SKIP
>>> sample(model, prompt, grammar, potentials=[attributes])                                       # doctest: +SKIP

Jedi infers names without running the code: it follows imports, classes, annotations, assignments and return values.
Install the extra ``monitors`` (``jedi``).
"""

from __future__ import annotations

import builtins
import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, final

from structgen.errors import GenerationError, install
from structgen.methods.monitors import Monitor, monitor

if TYPE_CHECKING:
    from os import PathLike

__all__ = ["python_attributes", "python_names"]

_IDENTIFIER: Final = r"[^\W\d]\w*"
_NAME_TRIGGER: Final = (
    r"(?:[-=(,+*/%<>&|^~@]|(?:^|[^\w.])(?:return|in|not|and|or|is|if|elif|else|while|assert|await|yield)[ \t])[ \t]*"
)
_EXPRESSION_WORDS: Final = frozenset(
    ("return", "in", "not", "and", "or", "is", "if", "elif", "else", "while", "assert", "await", "yield")
)
_SIGN: Final = re.compile(r"(?:[-+*/%<>&|^@=!]|\*\*|//|<<|>>)=|[-+*/%<>&|^~@=]|\*\*|//|<<|>>")


def python_attributes(
    project: str | PathLike[str] = ".",
    *,
    before: str = "",
    path: str | PathLike[str] | None = None,
    unknown: Literal["forbid", "allow"] = "forbid",
    environment: str | PathLike[str] | None = None,
) -> Monitor:
    """Allow after ``receiver.`` only attributes of the receiver.

    Dots in strings, comments, numbers and relative imports are ignored; after ``import package.`` and
    ``from package.`` the package's modules are allowed.

    Args:
        project: the folder in which imports are resolved.
        before: the code before the output in its file.
        path: the path of that file, for relative imports.
        unknown: the rule for a receiver that jedi cannot infer, such as a parameter without annotation: ``"forbid"``
            blocks its dot, ``"allow"`` allows any continuation.
        environment: the Python whose installed packages the code sees; by default the running one.

    Raises:
        GenerationError: jedi is not installed.
        ValueError: ``unknown`` is neither of the two, or the project is not a folder.
    """
    if unknown not in ("forbid", "allow"):
        raise ValueError(f"python_attributes: unknown must be 'forbid' or 'allow'; found {unknown!r}")
    code = _Code(project, before, path, environment)

    def attributes_of(text: str) -> list[str] | None:
        leaves = code.last_leaves(text)
        if not _is_attribute_dot(leaves):
            return None
        names = code.attributes(text)
        return None if not names and unknown == "allow" else names

    return monitor(r"\.", attributes_of, identifier=_IDENTIFIER, name="python attributes")


def python_names(
    project: str | PathLike[str] = ".",
    *,
    before: str = "",
    path: str | PathLike[str] | None = None,
    environment: str | PathLike[str] | None = None,
) -> Monitor:
    """Allow at the start of an expression only names in scope, keywords, and literals or signs.

    An expression starts after an assignment, an operator, a word such as ``return``, and within the arguments of a
    call. Code is read from left to right, so three things are blocked there: the variable of a comprehension before its
    ``for``, a second target (``a = b = 1``) and the prefix of a string (``f"..."``).

    Args:
        project: see ``python_attributes``.
        before: see ``python_attributes``.
        path: see ``python_attributes``.
        environment: see ``python_attributes``.

    Raises:
        GenerationError: jedi is not installed.
        ValueError: the project is not a folder.
    """
    code = _Code(project, before, path, environment)

    def names_at(text: str) -> list[str] | None:
        leaves = code.last_leaves(text)
        if not _is_operand_position(leaves):
            return None
        return ["", *code.names(text)]

    return monitor(_NAME_TRIGGER, names_at, identifier=_IDENTIFIER, name="python names")


@final
class _Code:
    """The code before an output, and its analysis by jedi."""

    def __init__(
        self,
        project: str | PathLike[str],
        before: str,
        path: str | PathLike[str] | None,
        environment: str | PathLike[str] | None,
    ) -> None:
        try:
            jedi: Any = importlib.import_module("jedi")
            parso: Any = importlib.import_module("parso")
        except ImportError as error:
            raise GenerationError(
                "python names",
                "jedi cannot be imported",
                evidence=str(error),
                remedy=install("monitors"),
            ) from error
        folder = Path(project)
        if not folder.is_dir():
            raise ValueError(
                f"python names: the project must be a folder; found {str(folder)!r}; create it or pass another one"
            )
        self._jedi = jedi
        self._grammar = parso.load_grammar()
        self._project = jedi.Project(folder)
        self._before = before
        self._path = None if path is None else Path(path)
        self._environment = (
            jedi.api.environment.InterpreterEnvironment()
            if environment is None
            else jedi.create_environment(str(environment), safe=False)
        )

    def last_leaves(self, text: str) -> list[Any]:
        """The last tokens of the code with ``text``, in reverse; none if the code ends in a comment or string."""
        leaf = self._grammar.parse(self._before + text).get_last_leaf()
        if "#" in leaf.prefix.rpartition("\n")[2]:
            return []
        leaves: list[Any] = []
        while leaf is not None and len(leaves) < _LOOKBACK:
            if leaf.type not in ("endmarker", "newline") or leaves:
                leaves.append(leaf)
            leaf = leaf.get_previous_leaf()
        line = leaves[0].end_pos[0] if leaves else 0
        # An error with a quote is an unclosed string; a string of a single line ends with its line.
        is_text = any(each.type == "error_leaf" and each.start_pos[0] == line and _has_quote(each) for each in leaves)
        return [] if is_text else leaves

    def attributes(self, text: str) -> list[str]:
        """The attributes that may follow the dot at the end of ``text``."""
        return [each.name for each in self._completions(text, "") if each.type != "keyword"]

    def names(self, text: str) -> list[str]:
        """The names with which an expression may begin after ``text``."""
        # Without a word at the cursor, jedi takes the scope of the last complete statement; with one it omits the names
        # of parameters. The stubs of the builtins import names for their own use.
        names = [
            each.name
            for each in self._completions(text, "x")
            if each.type == "keyword" or each.module_name != "builtins" or hasattr(builtins, each.name)
        ]
        parameters = (each.name for each in self._completions(text, ""))
        return names + [name[:-1] for name in parameters if name.endswith("=")]

    def _completions(self, text: str, word: str) -> list[Any]:
        code = self._before + text
        script = self._jedi.Script(code + word, path=self._path, project=self._project, environment=self._environment)
        line = code.count("\n") + 1
        return list(script.complete(line, len(code) - code.rfind("\n") - 1))


_LOOKBACK: Final = 64
_RECEIVERS: Final = frozenset(("name", "string", "number", "fstring_end"))


def _has_quote(leaf: Any) -> bool:
    return "'" in leaf.value or '"' in leaf.value


def _is_attribute_dot(leaves: list[Any]) -> bool:
    """Whether the code ends with the dot of an attribute or a module."""
    if not leaves or leaves[0].type not in ("operator", "error_leaf") or leaves[0].value != ".":
        return False
    if len(leaves) < 2:
        return False
    receiver = leaves[1]
    return receiver.type in _RECEIVERS or receiver.value in (")", "]", "}", "None", "True", "False")


def _is_operand_position(leaves: list[Any]) -> bool:
    """Whether an expression must begin after the code."""
    if not leaves or leaves[0].type not in ("operator", "keyword", "error_leaf"):
        return False
    sign = leaves[0].value
    if sign in ("(", ","):
        return _is_call(leaves)
    if sign == "=":
        return len(leaves) > 1 and (leaves[1].type == "name" or leaves[1].value in (")", "]"))
    if _SIGN.fullmatch(sign):  # after a bracket or comma it is the star of a parameter, or a sign
        return len(leaves) < 2 or leaves[1].value not in ("(", ",")
    return sign in _EXPRESSION_WORDS


def _is_call(leaves: list[Any]) -> bool:
    """Whether the innermost open bracket is that of a call, not of a definition, a display or a tuple."""
    depth = 0
    for index, leaf in enumerate(leaves):
        value = leaf.value
        if value in (")", "]", "}"):
            depth += 1
        elif value in ("(", "[", "{"):
            if depth:
                depth -= 1
                continue
            if value != "(" or index + 1 >= len(leaves):
                return False
            callee = leaves[index + 1]
            before = leaves[index + 2].value if index + 2 < len(leaves) else ""
            is_callee = callee.type == "name" or callee.value in (")", "]")
            return is_callee and before not in ("def", "class")
    return False
