"""What all documents of one policy and set of limits have in common."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from structgen.frontends.json_schema.emit.plan import LeafCache
from structgen.frontends.json_schema.emit.syntax import syntax_of
from structgen.frontends.json_schema.native import SimpleSchemas, supports_policy
from structgen.frontends.json_schema.normal.schema_reader import reader_of
from structgen.frontends.json_schema.source.document import NO_FORMATS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from structgen.frontends.json_schema.formats.user_format import StringFormat
    from structgen.frontends.json_schema.policy import JsonPolicy
    from structgen.frontends.json_schema.source.dialect import Dialect
    from structgen.grammar.limits import Limits

__all__ = ["Setting", "setting_of"]


class Setting:
    """A policy and limits; compared by identity, which makes it cheap in a key.

    Attributes:
        policy: the policy.
        limits: the limits.
        syntax: the terms of the policy.
        asserts_formats: whether ``format`` restricts strings.
        formats: the formats that the caller defines.
        simple: the native planner; ``None`` if it does not support the policy or the formats.
    """

    __slots__ = ("_leaves", "asserts_formats", "formats", "limits", "policy", "simple", "syntax")

    def __init__(self, policy: JsonPolicy, limits: Limits, formats: Mapping[str, StringFormat] = NO_FORMATS) -> None:
        self.policy = policy
        self.limits = limits
        self.syntax = syntax_of(policy)
        self.asserts_formats = policy.formats == "asserted"
        self.formats = formats
        self.simple = SimpleSchemas(self) if supports_policy(policy) and not formats else None
        self._leaves: dict[Dialect, LeafCache] = {}

    def leaves(self, dialect: Dialect) -> LeafCache:
        """The plans that documents of ``dialect`` share."""
        leaves = self._leaves.get(dialect)
        if leaves is None:
            leaves = self._leaves[dialect] = LeafCache(reader_of(dialect).active)
        return leaves


@lru_cache(maxsize=64)
def _cached_setting(policy: JsonPolicy, limits: Limits) -> Setting:
    return Setting(policy, limits)


_MAX_SETTINGS: Final = 64
_settings_by_identity: dict[tuple[int, int], tuple[Setting, JsonPolicy, Limits]] = {}


def setting_of(policy: JsonPolicy, limits: Limits) -> Setting:
    """The setting of a policy and limits, looked up by identity: hashing both takes longer than a small schema."""
    key = id(policy), id(limits)
    cached = _settings_by_identity.get(key)
    if cached is None:
        if len(_settings_by_identity) >= _MAX_SETTINGS:
            _settings_by_identity.clear()
        cached = _settings_by_identity[key] = _cached_setting(policy, limits), policy, limits
    return cached[0]
