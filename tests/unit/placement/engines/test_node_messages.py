"""Messages of hosts: what a launcher writes is read, and anything else is an error of ours in one line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.engines.node_messages import (
    LONGEST_BYTES,
    Beat,
    HostMessageError,
    LauncherHello,
    NodeEnded,
    NodeStarted,
    RankEnded,
    line_of,
    message_of,
)

MESSAGES = [
    LauncherHello("b0071d", 4026531836),
    Beat(),
    NodeStarted(),
    RankEnded(3, -9, True, "its last words"),
    NodeEnded(1, "\\x1b[2J"),
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
NAMES = st.sampled_from(["event", "boot", "pids", "rank", "status", "signalled", "last_log_line", "more"])
EVENTS = st.sampled_from(["hello", "beat", "started", "rank", "ended"])


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_read_as_it_was_written(message):
    line = line_of("0123", message)
    assert line.startswith(b"0123 ")
    assert line.count(b"\n") == 1
    assert message_of(line.removeprefix(b"0123 ")) == message


@given(st.dictionaries(NAMES, VALUES, max_size=5), EVENTS | VALUES)
def test_whatever_else_comes_is_refused_in_one_line(document, event):
    text = json.dumps({**document, "event": event}).encode()
    try:
        message = message_of(text)
    except HostMessageError as error:
        message = error
    if isinstance(message, HostMessageError):
        assert str(message).isprintable()
        return
    assert json.loads(line_of("", message)) == json.loads(text) or isinstance(message, RankEnded | NodeEnded)


@pytest.mark.parametrize("text", [b"", b"null", b"[" * 10**5, b"9" * 5000, b"\xff", b"{", b'{"event": []}'])
def test_what_is_no_document_is_refused(text):
    with pytest.raises(HostMessageError):
        message_of(text)


def test_the_last_line_of_a_log_moves_no_cursor_and_is_not_long():
    text = json.dumps({"event": "ended", "status": 1, "last_log_line": "\x1b[2J\n" + "x" * 100_000}).encode()
    message = message_of(text)
    assert message.last_log_line.startswith("\\x1b[2J\\nx")
    assert len(line_of("0" * 32, message)) < LONGEST_BYTES
