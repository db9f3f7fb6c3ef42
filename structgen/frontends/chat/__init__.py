"""Grammars for thoughts, answers and tool calls, as each family of models writes them.

The differences between families are data: one file each in ``families/``, with the tags, which of them are tokens, and
the order of the parts. Reading order: ``family``, ``arguments``, ``reply``, ``reading``.
"""

from structgen.frontends.chat.family import Family, families, load_family
from structgen.frontends.chat.reading import Reply, ToolCall, read_reply
from structgen.frontends.chat.reply import answer, think, tool_calls

__all__ = ["Family", "Reply", "ToolCall", "answer", "families", "load_family", "read_reply", "think", "tool_calls"]
