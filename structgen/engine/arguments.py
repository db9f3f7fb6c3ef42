"""Errors for arguments of another kind than a call takes: what to pass instead of a schema, a type, a tokenizer."""

from __future__ import annotations

import re
from os import PathLike

from structgen.errors import ArgumentError, found
from structgen.grammar.nodes import Grammar

__all__ = ["wrong_grammar", "wrong_limits", "wrong_vocabulary"]


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
