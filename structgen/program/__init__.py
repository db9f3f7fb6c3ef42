"""Programs: typed functions and generators that a language model answers.

``structgen.program`` is this package and the decorator, whichever was asked for first: the package can be called.
"""

import sys
from types import ModuleType
from typing import Any

from structgen.program.agents import AgentResult, Call, agent
from structgen.program.answer import Answer, answer_of
from structgen.program.commands import Ask, Branch, ask, assistant, fork, system, user
from structgen.program.definition import Program, program
from structgen.program.events import Done, Event, FieldFinal, FieldStarted, ObjectFinal, Retracted, Text
from structgen.program.evidence import Evidence, quoted
from structgen.program.extraction import extract
from structgen.program.fields import path_text
from structgen.program.mapping import Mapped
from structgen.program.remote import RemoteModel
from structgen.program.run import FieldScore, Loss, Outcome, Run, Served, Violation
from structgen.program.tools import Tool, tool

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
    "Tool",
    "Violation",
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
