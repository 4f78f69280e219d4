"""What an agent answers, over the pipes that ssh would connect."""

import os
from argparse import Namespace

from bench.hosts.agent import Agent
from bench.hosts.messages import CODEC, AgentRequest, Reply, TakeFile


def answers(directory, *bodies):
    """The answers of an agent with this directory, which ends when the requests do."""
    ours, theirs = os.pipe(), os.pipe()
    lines = [CODEC.line(AgentRequest(number, body)) for number, body in enumerate(bodies)]
    os.write(ours[1], b"".join(lines))
    os.close(ours[1])
    Agent(Namespace(socket=[], silence=20.0), ours[0], theirs[1], directory).serve()
    os.close(theirs[1])
    with open(theirs[0], "rb") as file:
        found = [CODEC.value(line) for line in file.read().splitlines()]
    os.close(ours[0])
    return found


def test_a_file_is_taken_once_so_that_a_later_run_without_one_is_not_given_it(tmp_path):
    (tmp_path / "0-vgg16.json").write_text("{}")
    taken = answers(tmp_path, *[TakeFile("0-vgg16.json")] * 2)
    assert taken == [Reply(0, "{}"), Reply(1, None)]


def test_files_outside_of_its_directory_are_not_given(tmp_path):
    (tmp_path / "secret").write_text("x")
    inside = tmp_path / "directory"
    inside.mkdir()
    assert answers(inside, TakeFile(str(tmp_path / "secret")), TakeFile("../secret")) == [Reply(0), Reply(1)]
