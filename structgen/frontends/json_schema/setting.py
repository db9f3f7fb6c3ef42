"""The state that both planners share for all documents of one policy and set of limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from structgen.frontends.json_schema.emit.plan import LeafCache
from structgen.frontends.json_schema.emit.syntax import syntax_of
from structgen.frontends.json_schema.normal.schema_reader import reader_of
from structgen.frontends.json_schema.source.document import NO_FORMATS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from structgen_kernels import _native

    from structgen.frontends.json_schema.formats.user_format import StringFormat
    from structgen.frontends.json_schema.policy import JsonPolicy
    from structgen.frontends.json_schema.source.dialect import Dialect
    from structgen.grammar.limits import Limits

__all__ = ["NativePlanner", "Setting"]


class NativePlanner(Protocol):
    """The native planner of simple schemas."""

    def plan(self, text: str) -> tuple[_native.SimpleTerms, Dialect] | None:
        """The terms of a schema, given as JSON text, and its dialect; ``None`` if it is not simple."""


class Setting:
    """A policy and limits; compared by identity, which makes it cheap in a key.

    Attributes:
        policy: the policy.
        limits: the limits.
        syntax: the terms of the policy.
        asserts_formats: whether ``format`` restricts strings.
        coerces_one_of: whether ``oneOf`` is read as ``anyOf``.
        formats: the formats that the caller defines.
        simple: the native planner; ``None`` if it does not support the policy or the formats.
    """

    __slots__ = ("_leaves", "asserts_formats", "coerces_one_of", "formats", "limits", "policy", "simple", "syntax")

    def __init__(
        self,
        policy: JsonPolicy,
        limits: Limits,
        formats: Mapping[str, StringFormat] = NO_FORMATS,
        *,
        coerces_one_of: bool = False,
    ) -> None:
        self.policy = policy
        self.limits = limits
        self.syntax = syntax_of(policy)
        self.coerces_one_of = coerces_one_of
        self.asserts_formats = policy.formats == "asserted"
        self.formats = formats
        self.simple: NativePlanner | None = None
        self._leaves: dict[Dialect, LeafCache] = {}

    def leaves(self, dialect: Dialect) -> LeafCache:
        """The plans that documents of ``dialect`` share."""
        leaves = self._leaves.get(dialect)
        if leaves is None:
            leaves = self._leaves[dialect] = LeafCache(reader_of(dialect).active)
        return leaves
