"""Text from others is escaped when it is put into a line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.core.one_line import one_line


@given(st.text(st.characters()))
def test_what_comes_out_is_one_line_and_moves_no_cursor(text):
    assert one_line(text).isprintable()


@given(st.text(st.characters(categories=["L", "N", "P", "S"])))
def test_what_is_printable_stays_as_it_is(text):
    assert one_line(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("a\nERROR forged", "a\\nERROR forged"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("\u2028next", "\\u2028next"),
        ("\x9b2J", "\\x9b2J"),
        ("naïve [/INST] job", "naïve [/INST] job"),
    ],
)
def test_examples(text, shown):
    assert one_line(text) == shown
