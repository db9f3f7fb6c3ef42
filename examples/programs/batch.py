"""A CSV file, row by row, several rows in one forward pass; a row that fails is told and skipped."""

import csv
import io
import sys
from datetime import date

from pydantic import BaseModel, Field

import structgen as sg

ORDERS = """\
id,note
1,"Three boxes of nails, needed on 2 May 2025"
2,"two hammers by the 14th of June 2025, thanks"
3,"Please send 12 saws on 2025-07-01"
4,"one ladder, 30 August 2025"
"""


class Order(BaseModel):
    item: str = Field(max_length=20)
    quantity: int = Field(ge=1, le=1000)
    needed: date


@sg.program(max_tokens=60)
def order(note: str) -> Order:
    """What is ordered, how many, and for when?

    {note}"""


if __name__ == "__main__":
    rows = list(csv.DictReader(io.StringIO(ORDERS)))
    writer = csv.writer(sys.stdout)
    writer.writerow(["id", *Order.model_fields])
    for row, found in zip(rows, order.map([row["note"] for row in rows], batch_size=8, progress=True), strict=True):
        if found.error is not None:
            print(f"row {row['id']}: {found.error}", file=sys.stderr)
            continue
        writer.writerow([row["id"], *found.value.model_dump(mode="json").values()])
