"""The turns of a parameter server: who waits for whom, and for how long."""

import socket
import threading
from contextlib import closing

import pytest

from collectives.parameter_server.turns import QueuedLock, SendingTurns, limit_unsent
from tests.eventually import eventually

ENDLESS_S = 1000.0


def test_turns_are_granted_in_the_order_of_asking():
    turns, order = QueuedLock(), []
    waiting = [threading.Event() for _ in range(5)]

    def take(number):
        waiting[number].set()
        with turns:
            order.append(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(5)]
    with turns:
        for number, thread in enumerate(threads):
            thread.start()
            waiting[number].wait()
            while len(turns._waiting) <= number:
                pass
    for thread in threads:
        thread.join()
    assert order == list(range(5))


class Transfer:
    """Sends a worker's weights on a thread, until it is told that they have left."""

    def __init__(self, turns, worker, error=None):
        self.began, self._left, self._error = threading.Event(), threading.Event(), error
        self.thread = threading.Thread(target=self._send, args=(turns, worker), daemon=True)
        self.thread.start()

    def _send(self, turns, worker):
        try:
            with turns.turn(worker):
                self.began.set()
                self._left.wait()
                if self._error is not None:
                    raise self._error
        except RuntimeError:
            pass

    def end(self):
        self._left.set()
        self.thread.join(60)
        assert not self.thread.is_alive()


def turns_that_take(seconds):
    turns = SendingTurns()
    turns._took_s.extend([seconds] * 15)
    return turns


def in_queue(turns, *workers):
    eventually(lambda: [each.worker for each in turns._queue] == list(workers))


@pytest.mark.parametrize("error", [None, RuntimeError("connection closed by peer")])
def test_weights_leave_in_the_order_of_asking_also_after_a_connection_broke(error):
    turns = turns_that_take(ENDLESS_S)
    transfers = []
    for worker in range(4):
        transfers.append(Transfer(turns, worker, error))
        in_queue(turns, *range(worker + 1))
    for number, transfer in enumerate(transfers):
        assert transfer.began.wait(60)
        assert not any(later.began.is_set() for later in transfers[number + 1 :])
        transfer.end()
    in_queue(turns)
    assert turns.patience_s == 2 * ENDLESS_S


def test_a_transfer_that_does_not_end_holds_up_the_others_once_only():
    turns = turns_that_take(0.01)
    hanging = Transfer(turns, 0)
    assert hanging.began.wait(60)
    behind = Transfer(turns, 1)
    assert behind.began.wait(60)
    hanging.end()
    # It was slow: now its weights go beside those of others, which wait for each other.
    turns._took_s.extend([ENDLESS_S] * 15)
    waiting, beside = Transfer(turns, 2), Transfer(turns, 0)
    in_queue(turns, 1, 2)
    assert beside.began.wait(60)
    assert not waiting.began.is_set()
    beside.end()
    # This time it was not.
    again = Transfer(turns, 0)
    in_queue(turns, 1, 2, 0)
    for transfer in (behind, waiting, again):
        assert transfer.began.wait(60)
        transfer.end()


def test_a_worker_that_has_joined_again_waits_for_its_own_turn():
    turns = turns_that_take(ENDLESS_S)
    lost = Transfer(turns, 0, RuntimeError("connection closed by peer"))
    assert lost.began.wait(60)
    other = Transfer(turns, 1)
    in_queue(turns, 0, 1)
    again = Transfer(turns, 0)
    in_queue(turns, 0, 1, 0)
    lost.end()
    in_queue(turns, 1, 0)
    for transfer in (other, again):
        assert transfer.began.wait(60)
        transfer.end()


def test_nobody_waits_before_it_is_known_how_long_a_transfer_takes():
    turns = SendingTurns()
    transfers = [Transfer(turns, worker) for worker in range(3)]
    assert all(transfer.began.wait(60) for transfer in transfers)
    for transfer in transfers:
        transfer.end()
    assert turns.patience_s > 0


@pytest.mark.parametrize(
    ("message_bytes", "limit"),
    [(0, 16 << 10), (500_000, 16 << 10), (3_200_000, 100_000), (1 << 30, 128 << 10)],
)
def test_connections_hold_a_small_part_of_a_message_unsent(message_bytes, limit):
    with closing(socket.socket()) as connection:
        limit_unsent(message_bytes)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == limit
