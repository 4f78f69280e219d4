"""A TCP receiver made of scapy packets on a TUN device: it acknowledges exactly what a test says, when it does.

Two kernel senders that are given the same script must show the same congestion window after every step if their
congestion controls are the same and do not depend on time. Timestamps and selective acknowledgements are off, and the
retransmission timer is longer than any test, so that no timer of TCP's own takes part.
"""

import contextlib
import ctypes
import fcntl
import os
import select
import socket
import struct
import time
from pathlib import Path

from pyroute2 import IPRoute
from scapy.layers.inet import IP, TCP

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_TCP_CONGESTION, _TCP_INFO = 13, 11
_CLONE_NEWNET = 0x40000000
_RTAX_RTO_MIN = 13
_SO_SNDBUFFORCE = 32
HERE, THERE = "10.99.0.1", "10.99.0.2"
MSS = 1000
NO_TIMEOUT_MS = 60_000
_RECEIVE_WINDOW = 65535
_PATIENCE_S = 30


class ScriptedPeer:
    """A connected kernel socket (`sender`) under `control`, and the peer that this object plays.

    For a thread or process that is in a network namespace of its own (`namespaces.in_scratch`, `unshare_network`).

    Args:
        control: the congestion control of the sender.
        ecn: whether ECN is negotiated.
        rto_min_ms: the shortest retransmission timeout of the sender.
        answer_after_s: how long the answer to the SYN takes.

    `longest_round_s` is the longest that a round trip of `play_round` can have been for the sender.
    """

    def __init__(
        self, control: str, ecn: bool, rto_min_ms: int = NO_TIMEOUT_MS, answer_after_s: float = 0.0
    ) -> None:
        self._tun = _open_tun(rto_min_ms)
        Path("/proc/sys/net/ipv4/tcp_ecn").write_text("1" if ecn else "0")
        for name in ("tcp_sack", "tcp_timestamps", "tcp_window_scaling"):
            Path(f"/proc/sys/net/ipv4/{name}").write_text("0")
        self.sender = socket.socket()
        self.sender.setsockopt(socket.IPPROTO_TCP, _TCP_CONGESTION, control.encode())
        self.sender.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, 1 << 20)
        self.sender.setblocking(False)
        self.acknowledged = 0
        self.received = 0
        self.longest_round_s = 0.0
        self._sent_s = 0.0
        self._shake_hands(ecn, answer_after_s)

    def _shake_hands(self, ecn: bool, answer_after_s: float) -> None:
        with contextlib.suppress(BlockingIOError):
            self.sender.connect((THERE, 80))
        syn = self._next_packet()
        self._port, self._first = syn[TCP].sport, syn[TCP].seq + 1
        assert "E" in syn[TCP].flags or not ecn
        time.sleep(answer_after_s)
        self._send(
            TCP(
                flags="SAE" if ecn else "SA",
                seq=999,
                ack=self._first,
                window=_RECEIVE_WINDOW,
                options=[("MSS", MSS)],
            )
        )
        self._next_packet()
        select.select([], [self.sender], [], _PATIENCE_S)

    def write(self, count: int) -> None:
        """Let the sender have `count` more bytes to send."""
        self._sent_s = time.monotonic()
        assert self.sender.send(bytes(count)) == count

    def play_round(self, congestion: bool = False, after_s: float = 0.0) -> int:
        """Receive a full window, then acknowledge all of it at once, echoing congestion (ECE) if asked to.

        Args:
            congestion: whether ECE is echoed.
            after_s: how long the acknowledgement takes.

        The sender must have more to send than its window. Returns the segments acknowledged.
        """
        segments = self.receive_window()
        time.sleep(after_s)
        self.acknowledged += segments * MSS
        sent_s, self._sent_s = self._sent_s, time.monotonic()  # the acknowledgement lets the next window go
        self._acknowledge("AE" if congestion else "A")
        self.longest_round_s = max(self.longest_round_s, time.monotonic() - sent_s)
        return segments

    def receive_window(self) -> int:
        """Wait until as many segments have come as the sender's and the receiver's windows allow; how many that are."""
        segments = min(self.window()[0], _RECEIVE_WINDOW // MSS)
        while self.received < self.acknowledged + segments * MSS:
            packet = self._next_packet()
            end = packet[TCP].seq - self._first + len(packet[TCP].payload)
            self.received = max(self.received, end)
        return segments

    def lose_one(self) -> None:
        """Lose a window's first segment: three duplicates, and an acknowledgement of all once it is resent."""
        segments = self.receive_window()
        for _ in range(3):
            self._acknowledge("A")
        self._acknowledge_once_resent(segments)

    def time_out(self) -> None:
        """Acknowledge a window only after its first segment is resent on the sender's timeout."""
        self._acknowledge_once_resent(self.receive_window())

    def _acknowledge_once_resent(self, segments: int) -> None:
        while self._next_packet()[TCP].seq - self._first != self.acknowledged:
            pass
        self.acknowledged += segments * MSS
        self._acknowledge("A")

    def receive_rest(self, count: int) -> None:
        """Receive and acknowledge, packet by packet, until all of the `count` bytes that were written are."""
        while self.acknowledged < count:
            packet = self._next_packet()
            end = packet[TCP].seq - self._first + len(packet[TCP].payload)
            if end > self.acknowledged:
                self.acknowledged = self.received = end
                self._acknowledge("A")

    def lose_tail(self, count: int, lost: int) -> None:
        """As `receive_rest`, but the last `lost` segments arrive only when the sender's timeout has sent them again."""
        self.receive_rest(count - lost * MSS)
        while self.received < count:
            packet = self._next_packet()
            self.received = max(self.received, packet[TCP].seq - self._first + len(packet[TCP].payload))
        while self.acknowledged < count:
            packet = self._next_packet()
            if packet[TCP].seq - self._first == self.acknowledged:
                self.acknowledged += len(packet[TCP].payload)
                self._acknowledge("A")

    def window(self) -> tuple[int, int]:
        """(cwnd, ssthresh) of the sender, in segments."""
        info = self.sender.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 104)
        ssthresh, cwnd = struct.unpack_from("=II", info, 76)
        return cwnd, ssthresh

    def close(self) -> None:
        """Abort the connection."""
        self.sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sender.close()
        os.close(self._tun)

    def _acknowledge(self, flags: str) -> None:
        self._send(TCP(flags=flags, seq=1000, ack=self._first + self.acknowledged, window=_RECEIVE_WINDOW))

    def _next_packet(self) -> IP:
        while True:
            ready, _, _ = select.select([self._tun], [], [], _PATIENCE_S)
            assert ready, f"the kernel sent nothing; {self.received} bytes so far"
            packet = IP(os.read(self._tun, 65536))
            if packet.haslayer(TCP):
                return packet

    def _send(self, segment: TCP) -> None:
        segment.sport, segment.dport = 80, getattr(self, "_port", 0)
        os.write(self._tun, bytes(IP(src=THERE, dst=HERE) / segment))


def _open_tun(rto_min_ms: int) -> int:
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH", b"scripted0", _IFF_TUN | _IFF_NO_PI))
    with IPRoute() as route:
        index = route.link_lookup(ifname="scripted0")[0]
        route.addr("add", index=index, address=HERE, prefixlen=24)
        # One segment a packet: the kernel may keep back the last of several until the next acknowledgement, which this
        # peer sends only when it has all of the window (tcp_tso_should_defer, by the times of a busy machine).
        route.link("set", index=index, state="up", mtu=1500, gso_max_segs=1)
        # The kernel heeds the metric only if it is locked: else a peer that is 200 ms late meets a timeout.
        metrics = {"lock": 1 << _RTAX_RTO_MIN, "rto_min": rto_min_ms}
        route.route("add", dst=f"{THERE}/32", oif=index, metrics=metrics)
    return tun


def unshare_network():
    """A network namespace of its own for this thread, with /proc/sys/net as seen from it."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
