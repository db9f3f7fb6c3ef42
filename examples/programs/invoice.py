"""An invoice as nested models: lines, dates, a currency, and a total that must be the sum of the lines.

The sum is Python's to judge: as soon as the total is written, its validator adds up the lines, and a wrong total is
drawn again on the spot, out of the amounts that stand in the document.  Lines that add up to none of these can't be
mended there: then the invoice is read again, with other luck.  So the sum is right; whether the rest is what the
document says, only a reader can tell, and a small model gets some of it wrong: here the currency.
"""

import re
from collections.abc import Generator
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationInfo, WithJsonSchema, field_validator

import structgen as sg

EXAMPLE = """\
Invoice AB-1007 of Miller & Sons, 2024-11-30, due 2024-12-14, in USD
3 brooms at 8.00
1 bucket at 6.50
total 30.50
"""
READ = (
    '{"number": "AB-1007", "issued": "2024-11-30", "due": "2024-12-14", "currency": "USD", "lines": '
    '[{"quantity": 3, "item": "brooms", "price": 8.0}, {"quantity": 1, "item": "bucket", "price": 6.5}], "total": 30.5}'
)
DOCUMENT = """\
Invoice NL-2041 of Nordlicht Supplies, 2025-04-03, due 2025-05-03, in EUR
4 lamps at 12.50
2 chairs at 45.00
total 140.00
"""
ATTEMPTS = 3


class Currency(StrEnum):
    EUR = "EUR"
    USD = "USD"
    SEK = "SEK"


def invoice_of(document: str) -> Any:
    """The type of an invoice that is read from a document."""
    amounts = sorted(map(float, set(re.findall(r"\b\d+[.]\d\d\b", document))))
    amount = Annotated[Decimal, WithJsonSchema({"enum": amounts})]

    class Line(BaseModel):
        quantity: int = Field(ge=1, le=1000)
        item: str = Field(max_length=30)
        price: amount

    class Invoice(BaseModel):
        number: str = Field(pattern=r"^[A-Z]{2}-[0-9]{4}$")
        issued: date
        due: date
        currency: Currency
        lines: list[Line] = Field(min_length=1, max_length=4)
        total: amount

        @field_validator("total")
        @classmethod
        def is_the_sum(cls, total: Decimal, info: ValidationInfo) -> Decimal:
            expected = sum(line.quantity * line.price for line in info.data["lines"])
            if total != expected:
                raise ValueError(f"the lines add up to {expected}, not to {total}")
            return total

    return Invoice


@sg.program(max_tokens=160, describe=False)
def read(document: str) -> Generator[Any, Any, Any]:
    yield sg.program.user(EXAMPLE)
    yield sg.program.assistant(READ)
    yield sg.program.user(document)
    return (yield invoice_of(document))


if __name__ == "__main__":
    for attempt in range(ATTEMPTS):
        try:
            run = read.run(DOCUMENT, seed=attempt, sampler=sg.Multinomial(temperature=0.3) if attempt else sg.Greedy())
        except sg.errors.ValidationFailed as error:
            print(f"attempt {attempt + 1}: {error}")
            continue
        invoice = run.value
        for line in invoice.lines:
            print(f"{line.quantity:4} {line.item:20} {line.price:10.2f} {line.quantity * line.price:10.2f}")
        print(f"{'total':25} {invoice.currency:>10} {invoice.total:10.2f}")
        print(f"invoice {invoice.number}, issued {invoice.issued:%d %B %Y}, due {invoice.due:%d %B %Y}")
        print(f"values refused on the way: {len(run.outcomes[0].violations)}")
        break
    else:
        print(f"no reading in {ATTEMPTS} attempts had lines that add up")
