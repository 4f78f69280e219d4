"""A small placement service for tests, over gRPC: records the agents' messages and sends given decisions."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue

import grpc

from placement.service.protocol import placement_pb2 as pb
from placement.service.protocol import placement_pb2_grpc

AHEAD_NS = 10**15
"""How far its clock is ahead of this host's CLOCK_MONOTONIC."""

WAIT_S = 60.0


class Service(placement_pb2_grpc.PlacementServicer):
    def __init__(self):
        self.heard = []
        self.attached = 0
        self._decisions = SimpleQueue()
        self._changed = threading.Condition()

    def Clock(self, request, context):
        return pb.ClockReply(now_ns=time.monotonic_ns() + AHEAD_NS)

    def Attach(self, messages, context):
        with self._changed:
            self.attached += 1
            decisions = self._decisions = SimpleQueue()
        context.add_callback(lambda: decisions.put(None))
        threading.Thread(target=self._listen, args=(messages, decisions), daemon=True).start()
        yield from iter(decisions.get, None)

    def _listen(self, messages, decisions):
        try:
            for message in messages:
                with self._changed:
                    self.heard.append(message)
                    self._changed.notify_all()
        except grpc.RpcError:
            pass
        decisions.put(None)

    def delay(self, sequence, delay_ns):
        self._decisions.put(pb.Decision(delay=pb.Delay(sequence=sequence, delay_ns=delay_ns, reason="test")))

    def hang_up(self):
        self._decisions.put(None)

    def of_kind(self, kind):
        return [getattr(each, kind) for each in self.heard if each.WhichOneof("message") == kind]

    def since_hello(self, number):
        """The messages after the hello of this number."""
        hellos = [at for at, each in enumerate(self.heard) if each.WhichOneof("message") == "hello"]
        return self.heard[hellos[number - 1] + 1 :] if len(hellos) >= number else []

    def await_that(self, condition):
        """Return once `condition` holds; it is checked after each message."""
        with self._changed:
            assert self._changed.wait_for(condition, WAIT_S), self.heard[-3:]

    def await_kind(self, kind, count=1):
        """The messages of this kind, once there are `count`."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.of_kind(kind)) >= count, WAIT_S), self.heard[-3:]
            return self.of_kind(kind)


@contextmanager
def serving(address):
    server = grpc.server(ThreadPoolExecutor(8))
    service = Service()
    placement_pb2_grpc.add_PlacementServicer_to_server(service, server)
    server.add_insecure_port(address)
    server.start()
    try:
        yield service
    finally:
        server.stop(0).wait()
