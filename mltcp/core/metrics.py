"""Prometheus metrics: their description, their samples, and a server for scrapers."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mltcp.core.errors import MltcpError, NotAvailableError, UsageError, shown

try:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
except ImportError:
    raise NotAvailableError(
        "metrics need the package prometheus_client: pip install 'mltcp[daemon]'"
    ) from None

Families = Iterable[Any]
"""Families of prometheus_client, each with its samples."""


@dataclass(frozen=True)
class Metric:
    """A metric: its name, its help text, and the function of its value; None is omitted."""

    name: str
    help: str
    value: Callable[[Any], float | None]
    counts: bool = False


def serve(address: str, collect: Callable[[], Families]) -> ScrapeServer:
    """Serve metrics at HOST:PORT on a thread, which calls `collect` for each scrape.

    Raises:
        UsageError: the address is malformed.
        MltcpError: the address cannot be listened at.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"metrics: expected HOST:PORT, got {shown(address)}")
    registry = CollectorRegistry()
    registry.register(_Collector(collect))
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        family, _, _, _, where = found[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            return ScrapeServer(listener, lambda: generate_latest(registry), CONTENT_TYPE_LATEST)
        except OSError:
            listener.close()
            raise
    except (OSError, socket.gaierror) as error:
        raise MltcpError(f"metrics cannot be served at {address}: {error.strerror or error}") from None


class _Collector:
    def __init__(self, collect: Callable[[], Families]) -> None:
        self.collect = collect

    def describe(self) -> list[Any]:
        """No metrics are collected at registration."""
        return []


def families(
    metrics: Iterable[Metric],
    labels: tuple[str, ...],
    things: Iterable[Any],
    labelled: Callable[[Any], tuple[str, ...]],
) -> Iterator[Any]:
    """The metrics of some things, each with its labels."""
    for metric in metrics:
        family = (CounterMetricFamily if metric.counts else GaugeMetricFamily)(
            metric.name, metric.help, labels=labels
        )
        for thing in things:
            value = metric.value(thing)
            if value is not None:
                family.add_metric([_text(each) for each in labelled(thing)], value)
        yield family


def _text(value: str) -> str:
    """Escape lone surrogates, which JSON lets a user send and which would fail the whole scrape."""
    return value.encode(errors="backslashreplace").decode()


# -- the server for scrapers --------------------------------------------------------------------
#
# Serves one page over HTTP to scrapers, of which none can keep others waiting.
#
# One thread serves all connections, with non-blocking sockets. A request and its reply have
# `LONGEST_S` together, however many bytes come meanwhile. Where there are too many connections, the
# oldest one gives way: a scraper that sends its request at once, as all do, has been served by then.


MOST_CONNECTIONS = 32
LONGEST_S = 5.0
MOST_REQUEST_BYTES = 8192
FRESH_S = 0.5
"""The page is made again after this time only."""

_BACKLOG = 128
_READ_BYTES = 4096
_POLL_S = 0.5
_END = b"\r\n\r\n"


class _Scrape:
    def __init__(self, accepted: socket.socket) -> None:
        self.socket = accepted
        self.until_s = time.monotonic() + LONGEST_S
        self.request = b""
        self.reply: memoryview | None = None


class ScrapeServer:
    """Serves a page until it is closed.

    Args:
        listener: a listening TCP socket.
        page: makes the page.
        content_type: of the page.
    """

    def __init__(self, listener: socket.socket, page: Callable[[], bytes], content_type: str) -> None:
        self._listener = listener
        self._make_page = page
        self._content_type = content_type
        self._page, self._made_s = b"", -FRESH_S
        self._scrapes: dict[socket.socket, _Scrape] = {}
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()
        listener.setblocking(False)
        listener.listen(_BACKLOG)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="mltcp-metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Stop serving."""
        self._wake.close()
        self._thread.join()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select(_POLL_S):
                if key.fileobj is self._woken:
                    return self._close_all()
                if key.fileobj is self._listener:
                    self._accept()
                elif (scrape := self._scrapes.get(key.fileobj)) is not None:  # type: ignore[call-overload]
                    self._serve(scrape)
            now_s = time.monotonic()
            for scrape in [each for each in self._scrapes.values() if each.until_s < now_s]:
                self._drop(scrape)

    def _close_all(self) -> None:
        for scrape in list(self._scrapes.values()):
            self._drop(scrape)
        self._selector.close()
        self._listener.close()
        self._woken.close()

    def _accept(self) -> None:
        try:
            accepted, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # for want of a descriptor
            time.sleep(_POLL_S)
            return
        accepted.setblocking(False)
        if len(self._scrapes) >= MOST_CONNECTIONS:
            self._drop(next(iter(self._scrapes.values())))
        scrape = self._scrapes[accepted] = _Scrape(accepted)
        self._selector.register(accepted, selectors.EVENT_READ)
        self._serve(scrape)

    def _drop(self, scrape: _Scrape) -> None:
        del self._scrapes[scrape.socket]
        self._selector.unregister(scrape.socket)
        scrape.socket.close()

    def _serve(self, scrape: _Scrape) -> None:
        try:
            done = self._read(scrape) if scrape.reply is None else self._write(scrape)
        except BlockingIOError:
            return
        except OSError:
            done = True
        if done:
            self._drop(scrape)

    def _read(self, scrape: _Scrape) -> bool:
        """Read of the request, and begin to reply if that is all; whether the connection is done with."""
        received = scrape.socket.recv(_READ_BYTES)
        scrape.request += received
        if _END in scrape.request:
            scrape.reply = memoryview(self._reply_to(scrape.request))
            self._selector.modify(scrape.socket, selectors.EVENT_WRITE)
            return self._write(scrape)
        return not received or len(scrape.request) > MOST_REQUEST_BYTES

    def _write(self, scrape: _Scrape) -> bool:
        assert scrape.reply is not None
        scrape.reply = scrape.reply[scrape.socket.send(scrape.reply) :]
        if not scrape.reply:
            with suppress(OSError):
                scrape.socket.shutdown(socket.SHUT_WR)
        return not scrape.reply

    def _reply_to(self, request: bytes) -> bytes:
        method = request.split(b" ", 1)[0]
        if method not in (b"GET", b"HEAD"):
            return self._with_head("405 Method Not Allowed", b"")
        try:
            page = self._fresh_page()
        except Exception as error:  # a bug there must not end the thread
            return self._with_head("500 Internal Server Error", repr(error).encode() + b"\n")
        whole = self._with_head("200 OK", page)
        return whole[: len(whole) - len(page)] if method == b"HEAD" else whole

    def _fresh_page(self) -> bytes:
        now_s = time.monotonic()
        if now_s - self._made_s >= FRESH_S:
            self._page, self._made_s = self._make_page(), now_s
        return self._page

    def _with_head(self, status: str, body: bytes) -> bytes:
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: {self._content_type}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body
