"""Chain of thought, then the answer: a free sentence first, and then a number in the same turn.

The same questions are asked for the number alone.  A large model gains by the sentence; this small one often reckons
wrongly either way, and the counts at the end show it.
"""

from collections.abc import Generator
from typing import Annotated, Any

from pydantic import Field

import structgen as sg

QUESTIONS = {
    "A box has 6 eggs. How many eggs are in 3 boxes?": 18,
    "Tom has 12 apples and eats 5 of them. How many apples are left?": 7,
}
EXAMPLE = "A shelf has 4 rows with 5 books each. How many books are on it?"
THOUGHT = sg.regex(r"[A-Z][A-Za-z0-9 ,+*=-]{10,80}[.]")
Number = Annotated[int, Field(ge=0, le=999)]


@sg.program(max_tokens=40)
def reasoned(question: str) -> Generator[Any, Any, tuple[str, int]]:
    yield EXAMPLE
    yield sg.program.assistant("There are 4 rows with 5 books each, and 4 * 5 = 20. So the answer is 20.")
    yield sg.program.user(question)
    thought = yield THOUGHT
    yield " So the answer is "
    return thought, (yield Number)


@sg.program(max_tokens=10)
def direct(question: str) -> Generator[Any, Any, int]:
    yield EXAMPLE
    yield sg.program.assistant("The answer is 20.")
    yield sg.program.user(question)
    yield sg.program.assistant("The answer is ")
    return (yield Number)


if __name__ == "__main__":
    right = {"with the thought": 0, "without it": 0}
    for question, expected in QUESTIONS.items():
        thought, answer = reasoned(question)
        draft = direct(question)
        print(f"{question}\n  thought: {thought}\n  answer: {answer}; without the thought: {draft}; right: {expected}")
        right["with the thought"] += answer == expected
        right["without it"] += draft == expected
    for way, count in right.items():
        print(f"{way}: {count} of {len(QUESTIONS)} right")
