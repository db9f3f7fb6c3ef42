"""Errors for arguments of the wrong type: what to pass instead of a schema, a Python type, a tokenizer."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from os import PathLike
from typing import Any, Final

from structgen_kernels import _native

from structgen.errors import ArgumentError, StructgenError, VocabularyError, found, number_of, shown
from structgen.grammar.nodes import Grammar

__all__ = ["token_out_of_range", "wrong_argument", "wrong_grammar", "wrong_limits", "wrong_vocabulary"]


def wrong_grammar(call: str, value: object, *, expected: str = "a Grammar or a Constraint") -> ArgumentError:
    """Make the error for a value that ``call`` takes for no grammar."""
    if isinstance(value, (str, bytes)):
        remedy = (
            "pass sg.regex(...) for a regular expression, sg.json_schema(...) for a JSON Schema, sg.literal(...) for "
            "the text itself, or sg.load(...) for a file"
        )
    elif isinstance(value, (dict, bool)):
        remedy = "pass sg.json_schema(schema) for a JSON Schema"
    elif isinstance(value, PathLike):
        remedy = "pass sg.load(path)"
    elif isinstance(value, (list, tuple, set, frozenset)):
        remedy = "pass sg.select([...]) for one of several texts"
    elif isinstance(value, re.Pattern):
        remedy = "pass sg.regex(pattern.pattern)"
    elif value is None:
        remedy = "pass sg.grammars.any_text() for any text"
    elif isinstance(getattr(value, "grammar", None), Grammar):
        remedy = "pass its grammar: constraint.grammar"
    else:
        remedy = "pass sg.json_schema(T) for the JSON of a Python type T, or a grammar such as sg.regex(...)"
    return ArgumentError(call, f"expected {expected}", evidence=found(value), remedy=remedy)


def wrong_vocabulary(call: str, value: object) -> ArgumentError:
    """Make the error for a value that is no vocabulary."""
    if hasattr(getattr(value, "vocabulary", None), "trie"):
        remedy = "pass its vocabulary: model.vocabulary"
    elif isinstance(value, (str, PathLike)):
        remedy = f"pass sg.Vocabulary.load({str(value)!r:.60}), with the path of a tokenizer"
    elif value is None:
        remedy = "pass model.vocabulary, or sg.Vocabulary.load(tokenizer)"
    else:
        remedy = "pass sg.Vocabulary.load(tokenizer) for a tokenizer, or model.vocabulary"
    return ArgumentError(call, "expected a Vocabulary", evidence=found(value), remedy=remedy)


def wrong_limits(call: str, value: object) -> ArgumentError:
    """Make the error for a value that is no ``Limits``."""
    remedy = "pass sg.Limits(steps=...), or leave limits out; max_tokens bounds an output"
    return ArgumentError(call, "expected Limits", evidence=found(value), remedy=remedy)


_COUNTS: Final = {
    "budget": "it counts the tokens that are left; pass 0 where nothing but EOS may come, or None for no limit",
    "limit": "it counts the tokens of the whole output; None is no limit",
    "most": "it counts the tokens to list; pass 0 or more",
    "count": "it counts the tokens to take back; pass 0 or more",
}
_ARRAY: Final = "int32 array of numpy or CPU tensor of torch, contiguous, [rows, ceil(V / 32)]"
_IDS: Final = "vocabulary.tokenize(text) returns the ids of a text"
_KINDS: Final = {
    "token_id": ("token_id must be the id of a token, an int", "validate() takes a list of ids, accept_bytes() bytes"),
    "token_ids": ("token_ids must be a list of ids of tokens", _IDS),
    "parents": ("parents must be a list of ints", "pass for each token the index of its parent, -1 for a root"),
    "token_or_bytes": ("token_or_bytes must be the id of a token, an int, or bytes", "pass text.encode() for a text"),
    "data": ("data must be bytes", "pass text.encode() for a text, bytes(data) for a bytearray"),
    "bitmask": (
        f"bitmask must be an {_ARRAY}",
        "np.zeros((rows, (vocabulary.size + 31) // 32), dtype=np.int32) is one",
    ),
    "row": ("row must be the index of a row of the bitmask, an int", "pass 0 for the first"),
    "matchers": ("matchers must be a list of Matchers", "pass [matcher] for one; constraint.matcher() makes them"),
    "matcher_of": ("matcher_of must return a Matcher", "constraint.matcher() makes them"),
    "trees": ("trees must be a list of pairs", "pass a pair (token_ids, parents) for each matcher"),
    "constraint": ("it is made by a Constraint", "call constraint.matcher()"),
}
"""What an argument must be, and what to do about another."""
_LISTS: Final[dict[str, tuple[type, ...]]] = {
    "token_ids": (),
    "parents": (),
    "matchers": (_native.Matcher,),
    "trees": (tuple, list),
}
"""Arguments that are lists, with what their items may be beside ints."""


def wrong_argument(call: str, argument: str, value: object, bound: int = 0) -> Exception:
    """Make the error for an argument of a method of the engine: of another kind, or out of its bounds.

    Args:
        call: the method.
        argument: the name of the argument.
        value: what was passed.
        bound: how many tokens, rows or steps there are, for numbers that are bounded so.
    """
    number = _number(value)
    if number is None:
        return _wrong_kind(call, argument, value, bound)
    if argument == "token_id":
        return token_out_of_range(call, number, bound)
    if argument == "row":
        return IndexError(f"bitmask: row {shown(number)} of {bound}")
    if argument == "count" and number >= 0:
        taken = f"the matcher has taken {bound}"
        return ValueError(
            f"{call}: the count is {shown(number)}, more steps than were taken; {taken}; reset() takes all"
        )
    if argument in _COUNTS and number < 0:
        return ValueError(f"{call}: the {argument} is {shown(number)}; {_COUNTS[argument]}")
    return _wrong_kind(call, argument, value, bound)


def token_out_of_range(call: str, token: int, size: int) -> VocabularyError:
    """Make the error for an id that no token of a vocabulary of ``size`` tokens has."""
    return VocabularyError(
        call,
        f"token {shown(token)} is out of range",
        evidence=f"the vocabulary has {number_of(size, 'token')}",
        remedy=f"use ids in 0..{size - 1}",
    )


def _wrong_kind(call: str, argument: str, value: object, bound: int) -> StructgenError:
    evidence = found(value)
    if argument == "bitmask" and hasattr(value, "shape"):
        evidence = _described(value)
    elif argument in _LISTS and isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for place, item in enumerate(value):
            number = None if argument in ("matchers", "trees") else _number(item)
            if number is None and not isinstance(item, _LISTS[argument]):
                evidence = f"{found(item)} at index {place}"
                break
            if argument == "token_ids" and number is not None and not 0 <= number < bound:
                return token_out_of_range(call, number, bound)
            if argument == "parents" and number is not None and not -1 <= number < len(value):
                evidence = f"{found(item)} at index {place}"
                break
    wanted, remedy = _KINDS.get(argument, (f"{argument} must be an int", _COUNTS.get(argument, "")))
    return ArgumentError(call, wanted, evidence=evidence, remedy=remedy)


def _number(value: object) -> int | None:
    try:
        return operator.index(value)  # type: ignore[arg-type]  # the error says that it is none
    except TypeError:
        return None


def _described(array: Any) -> str:
    """Say what an array is, as far as masks cannot be of its kind."""
    kind = str(getattr(array, "dtype", type(array).__name__)).removeprefix("torch.")
    device = str(getattr(array, "device", "cpu"))
    place = "" if device == "cpu" else f" on {device}"
    flags: Any = getattr(array, "flags", None)
    is_whole = flags.c_contiguous if hasattr(flags, "c_contiguous") else getattr(array, "is_contiguous", lambda: True)()
    return f"found {kind} of shape {list(array.shape)}{place}{'' if is_whole else ', not contiguous'}"


_native.set_argument_error(wrong_argument)
