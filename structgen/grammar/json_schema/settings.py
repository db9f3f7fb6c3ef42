"""What all documents of one policy and set of limits have in common."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from structgen.grammar.json_schema.documents import NO_FORMATS
from structgen.grammar.json_schema.leaves import Leaves
from structgen.grammar.json_schema.plain import PlainSchemas, is_plain
from structgen.grammar.json_schema.reading import reader_of
from structgen.grammar.json_schema.syntax import syntax_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from structgen.grammar.json_schema.drafts import Dialect
    from structgen.grammar.json_schema.policy import JsonPolicy
    from structgen.grammar.json_schema.user_formats import StringFormat
    from structgen.grammar.limits import Limits

__all__ = ["Setting", "setting_of"]


class Setting:
    """A policy and limits; compared by identity, so that it is a cheap part of a key.

    Attributes:
        policy: the policy.
        limits: the limits.
        syntax: the terms of the policy.
        asserts_formats: whether ``format`` restricts strings.
        formats: the formats that the caller defines.
        plain: the native planner; ``None`` if it does not know the policy, or not the formats.
    """

    __slots__ = ("_leaves", "asserts_formats", "formats", "limits", "plain", "policy", "syntax")

    def __init__(self, policy: JsonPolicy, limits: Limits, formats: Mapping[str, StringFormat] = NO_FORMATS) -> None:
        self.policy = policy
        self.limits = limits
        self.syntax = syntax_of(policy)
        self.asserts_formats = policy.formats == "asserted"
        self.formats = formats
        self.plain = PlainSchemas(self) if is_plain(policy) and not formats else None
        self._leaves: dict[Dialect, Leaves] = {}

    def leaves(self, dialect: Dialect) -> Leaves:
        """The plans that documents of ``dialect`` share."""
        found = self._leaves.get(dialect)
        if found is None:
            found = self._leaves[dialect] = Leaves(reader_of(dialect).active)
        return found


@lru_cache(maxsize=64)
def _made(policy: JsonPolicy, limits: Limits) -> Setting:
    return Setting(policy, limits)


_MOST_KNOWN: Final = 64
_known: dict[tuple[int, int], tuple[Setting, JsonPolicy, Limits]] = {}


def setting_of(policy: JsonPolicy, limits: Limits) -> Setting:
    """The setting of two values, found by their identity: hashing them takes longer than a small schema does."""
    key = id(policy), id(limits)
    known = _known.get(key)
    if known is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        known = _known[key] = _made(policy, limits), policy, limits
    return known[0]
