"""An agent with two tools: it looks up prices and multiplies, then answers with a number."""

from typing import Literal

import structgen as sg

PRICES = {"apple": 3, "pear": 4, "plum": 2}


@sg.program.tool
def price(fruit: Literal["apple", "pear", "plum"]) -> int:
    """The price of one fruit in cents."""
    return PRICES[fruit]


@sg.program.tool
def multiply(first: int, second: int) -> int:
    """The product of two numbers."""
    return first * second


if __name__ == "__main__":
    clerk = sg.program.agent([price, multiply], answer=int, max_steps=4)
    result = clerk("How many cents do 5 pears cost?")
    for call in result.calls:
        print(f"{call.tool}({call.arguments}) -> {call.result if call.error is None else call.error}")
    print("answer:", result.answer, "(calls used up)" if result.is_forced else "")
