"""How families of models write thoughts, answers and calls of tools, as grammars.

What differs between families is data: one file each in ``families/``, with the tags, which of them are tokens, and the
order of the parts.  Reading order: ``family``, ``layout``, ``thinking``, ``calling``, ``replies``.
"""

from structgen.grammar.protocols.calling import tool_calls
from structgen.grammar.protocols.family import Family, families, load_family
from structgen.grammar.protocols.replies import Reply, ToolCall, read_reply
from structgen.grammar.protocols.thinking import answer, think

__all__ = ["Family", "Reply", "ToolCall", "answer", "families", "load_family", "read_reply", "think", "tool_calls"]
