"""Schemas as their specification reads them: the language that validators judge, with free white space."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from structgen.frontends import json_schema as front_end
from structgen.frontends.json_schema import JsonPolicy
from structgen.grammar.nodes import Grammar

__all__ = ["AS_WRITTEN", "as_written"]

AS_WRITTEN = JsonPolicy(whitespace="flexible", additional="written")


def as_written(schema: object, *, policy: JsonPolicy | None = None, **options: Any) -> Grammar:
    """``json_schema`` with undeclared members as the schema says, and by default with free white space."""
    policy = AS_WRITTEN if policy is None else replace(policy, additional="written")
    return front_end.json_schema(schema, policy=policy, **options)
