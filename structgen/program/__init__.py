"""Programs: typed functions and generators that a language model answers.

``structgen.program`` is this package and the decorator, so the package can be called.
"""

import sys
from types import ModuleType
from typing import Any

from structgen.program.answer import Answer, Evidence, answer_of
from structgen.program.backends.remote_answer import RemoteModel
from structgen.program.batch_map import Mapped
from structgen.program.command import Ask, Branch, ask, assistant, fork, system, user
from structgen.program.definition import Program, program
from structgen.program.extraction import Written, extract, quoted
from structgen.program.json_cursor import path_text
from structgen.program.outcome import FieldScore, Loss, Outcome, Run, Served, Violation
from structgen.program.stream.event import Done, Event, FieldFinal, FieldStarted, ObjectFinal, Retracted, Text, Thought
from structgen.program.stream.guard import Guard
from structgen.program.tool_use import AgentResult, Call, Tool, agent, tool

__all__ = [
    "AgentResult",
    "Answer",
    "Ask",
    "Branch",
    "Call",
    "Done",
    "Event",
    "Evidence",
    "FieldFinal",
    "FieldScore",
    "FieldStarted",
    "Guard",
    "Loss",
    "Mapped",
    "ObjectFinal",
    "Outcome",
    "Program",
    "RemoteModel",
    "Retracted",
    "Run",
    "Served",
    "Text",
    "Thought",
    "Tool",
    "Violation",
    "Written",
    "agent",
    "answer_of",
    "ask",
    "assistant",
    "extract",
    "fork",
    "path_text",
    "program",
    "quoted",
    "system",
    "tool",
    "user",
]


class _Package(ModuleType):
    def __call__(self, *args: Any, **settings: Any) -> Any:
        """See ``structgen.program.definition.program``."""
        return program(*args, **settings)


sys.modules[__name__].__class__ = _Package
