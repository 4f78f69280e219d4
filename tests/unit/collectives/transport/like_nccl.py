"""Opens connections as NCCL's socket transport does: for its bootstrap and, later, for the data of single peers.

A rank that is to receive listens at a new port, the sender learns the address out of band and opens several connections
there (NCCL_NSOCKS_PERTHREAD), the receiver accepts these on a thread of its own and closes the listener.
"""

import socket
import threading

HOST = "127.0.0.1"


class LikeNccl:
    def __init__(self, store, rank, ranks, each=3):
        self.store, self.rank, self.ranks, self.each = store, rank, ranks, each
        self.bootstrap = []
        self.data = {}

    def begin(self):
        """The bootstrap: a ring of single connections, to listeners that stay."""
        listener = socket.create_server((HOST, 0))
        self._tell("bootstrap", self.rank, listener)
        after = (self.rank + 1) % self.ranks
        self.bootstrap = [listener, self._reach("bootstrap", after), listener.accept()[0]]

    def connect(self, to, source, turn="ring"):
        """Connections that send to one rank and receive from another, as for a ring."""
        with socket.create_server((HOST, 0)) as listener:
            # Before anything waits in the store, which would hold up this: it serves one thread at a time.
            self._tell(f"{turn}/{source}", self.rank, listener)
            threads = [
                threading.Thread(target=self._receive, args=(source, listener)),
                threading.Thread(target=self._send, args=(to, turn)),
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def close(self):
        for each in [*self.bootstrap, *(one for many in self.data.values() for one in many)]:
            each.close()

    def _receive(self, source, listener):
        accepted = [listener.accept()[0] for _ in range(self.each)]
        self.data.setdefault(source, []).extend(accepted)

    def _send(self, to, turn):
        opened = [self._reach(f"{turn}/{self.rank}", to) for _ in range(self.each)]
        self.data.setdefault(to, []).extend(opened)

    def _tell(self, what, rank, listener):
        self.store.set(f"{what}/{rank}", str(listener.getsockname()[1]))

    def _reach(self, what, rank):
        return socket.create_connection((HOST, int(self.store.get(f"{what}/{rank}"))))
