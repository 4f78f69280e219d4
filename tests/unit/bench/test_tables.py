"""Tables of results: a column is a heading and a function of a row."""

import io

from bench.tables import Column, console, number, table_of

COLUMNS = (
    Column("name", lambda row: row[0], left=True),
    Column("value", lambda row: number(row[1], ".1f")),
)


def shown(title=None):
    out = console(60)
    out.file = io.StringIO()
    out.print(table_of([("a", 1.25), ("longer", None)], COLUMNS, title))
    return [line.rstrip() for line in out.file.getvalue().splitlines()]


def test_text_stands_left_and_numbers_right():
    assert shown() == ["name    value", "a         1.2", "longer      -"]


def test_a_title_stands_above():
    assert shown("Values")[0].strip() == "Values"
