"""Where in a TOML text a field is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.daemon.service.configuration import line_of

TEXT = '''\
# a comment with = and [x]
group = """
[pacing]
mode = 1
"""
interfaces = [
  "eth0",
  ["not", "a header"],
]

[ pacing . "constants" ]  # blanks and quotes
timer = 1
"alpha_gain" = 2

[function]
slope = 1
inner = { first = 1, second = { deep = 2 } }
dotted.key = 3
[[many]]
one = 1
[[many]]
one = 2
[after]
mode = 1
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (["group"], 2), (["interfaces"], 6), (["pacing"], 11), (["pacing", "constants"], 11),
        (["pacing", "constants", "timer"], 12), (["pacing", "constants", "alpha_gain"], 13),
        (["function"], 15), (["function", "inner", "second", "deep"], 17), (["function", "dotted", "key"], 18),
        (["many"], 19), (["after", "mode"], 24),
    ],
)  # fmt: skip
def test_a_field_is_where_its_statement_begins(path, line):
    assert line_of(TEXT, path) == line


@pytest.mark.parametrize(
    ("path", "line"),
    [(["pacing", "mode"], 11), (["function", "none", "deep"], 15), (["nothing"], 1), ([], 1)],
)
def test_a_field_that_is_not_there_is_where_it_would_be(path, line):
    assert line_of(TEXT, path) == line


STATEMENTS = st.sampled_from(
    ["", "# {} = 1", "{} = 1", '{} = """\na = 1\n[x]\n"""', "{} = [\n1,\n]", "[{}]", "[[{}]]"]
)


@given(st.lists(STATEMENTS, max_size=20))
def test_every_key_is_found_where_it_was_written(statements):
    lines, section, expected = [], [], {}
    for position, statement in enumerate(statements):
        name = f"k{position}"
        if statement.startswith("["):
            section = (
                [name] if statement == "[{}]" else None
            )  # what is in an array of tables is not one field
            expected[name,] = len(lines) + 1
        elif statement.startswith("{") and section is not None:
            expected[(*section, name)] = len(lines) + 1
        lines += statement.format(name).split("\n")
    text = "\n".join(lines)
    assert {path: line_of(text, path) for path in expected} == expected
