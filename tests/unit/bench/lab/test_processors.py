"""The processor time of other programs: counted from made-up readings, and measured beside a real busy process."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager

from bench.lab.processors import (
    MachineTicks,
    OtherPrograms,
    ProcessTimes,
    count,
    descendants,
    other_ticks,
    parse_machine_ticks,
    read_processes,
)

SPIN, WAIT = "while True: pass", "input()"


def reading(*processes):
    return {each.key: each for each in processes}


def process(pid, own, waited=0, parent=1, kernel=False, started=100):
    return ProcessTimes(pid, started, parent, kernel, own, waited)


@contextmanager
def child(program):
    """A Python process in a session of its own, which has begun to run the program."""
    command = [sys.executable, "-c", f"print(flush=True)\n{program}"]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    try:
        started.stdout.readline()
        yield started.pid
    finally:
        started.kill()
        started.communicate()


def used_s(pid):
    (each,) = (each for key, each in read_processes().items() if key[0] == pid)
    return each.own / os.sysconf("SC_CLK_TCK")


def await_used(pid, seconds):
    until_s = used_s(pid) + seconds
    while used_s(pid) < until_s:
        time.sleep(0.01)


def test_only_other_user_processes_count():
    before = reading(process(1, 10), process(2, 0, kernel=True), process(7, 50), process(9, 5))
    after = reading(process(1, 11), process(2, 90, kernel=True), process(7, 90), process(9, 9))
    assert other_ticks(before, after, {(7, 100)}) == 1 + 4


def test_a_process_that_came_and_went_counts_by_what_its_parent_inherits():
    before = reading(process(5, 10, waited=3))
    after = reading(process(5, 10, waited=33))
    assert other_ticks(before, after, set()) == 30


def test_a_process_that_ended_counts_from_the_first_reading_on():
    before = reading(process(5, 10), process(6, 200, parent=5))
    after = reading(process(5, 10, waited=212))
    assert other_ticks(before, after, set()) == 12
    # Nobody waited for it: what it used in between is not known.
    assert other_ticks(before, reading(process(5, 10)), set()) == 0


def test_a_number_that_is_used_again_is_another_process():
    before, after = reading(process(6, 200)), reading(process(6, 4, started=900))
    assert other_ticks(before, after, set()) == 4


def test_descendants_are_children_and_theirs():
    processes = reading(process(5, 0), process(6, 0, parent=5), process(7, 0, parent=6), process(8, 0))
    assert descendants(processes, 5) == {(5, 100), (6, 100), (7, 100)}


def test_this_process_is_read():
    (mine,) = (each for key, each in read_processes().items() if key[0] == os.getpid())
    assert mine.parent == os.getppid()
    assert mine.own > 0
    assert not mine.kernel


def test_a_busy_program_counts_for_those_it_does_not_descend_from():
    with child(WAIT) as waiting, child(SPIN) as busy:
        beside, above = OtherPrograms(root=waiting), OtherPrograms(root=os.getpid())
        await_used(busy, 0.5)
        without, with_it = above.share(), beside.share()
    # At least a fifth of one processor, whatever else runs on the machine.
    assert with_it * count() > 0.2
    # Time that the hypervisor withheld counts for both, and may differ between the two readings.
    assert 0 <= without < with_it


def test_the_times_of_the_machine():
    stat = "cpu  10 20 30 1000 40 5 6 70 8 9\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 1\n"
    assert parse_machine_ticks(stat) == MachineTicks(programs=60, interrupts=11, stolen=70)
