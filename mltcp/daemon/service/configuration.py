"""The daemon's configuration file, in TOML. Errors name the file, the line and the field."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from mltcp.control.aggressiveness import LARGEST_FACTOR, SMALLEST_INTERCEPT, Aggressiveness, Shape
from mltcp.control.traffic_classes import CLASSES
from mltcp.core.errors import UsageError, shown
from mltcp.core.policy_names import DEFAULT_CONTROL, control_name
from mltcp.core.quantities import check_number, parse_rate_bps
from mltcp.daemon.client import protocol
from mltcp.daemon.jobs.contention import ASIDE_ABOVE, MOST_SAMPLED
from mltcp.daemon.jobs.job_table import LAST_NUMBER, Limits
from mltcp.daemon.journal import JOURNAL
from mltcp.ebpf.congestion_controls import CONTROLS, MLTCP_CONTROLS
from mltcp.pacing.rate_law import CONSTANTS, MAX_LINE_RATE_BPS, MIN_LINE_RATE_BPS, Constants
from mltcp.pacing.tc.htb_qdisc import MARK_MASK
from mltcp.pacing.tc.qdiscs import HANDLE


def line_of(text: str, path: Sequence[str]) -> int:
    """The line (from 1) on which the statement of a field begins.

    Args:
        text: valid TOML.
        path: the keys of the field, outermost first. If it is missing: the line of its table, or else 1.
    """
    for depth in range(len(path), 0, -1):
        line = _line(text, path[:depth])
        if line is not None:
            return line
    return 1


def _line(text: str, path: Sequence[str]) -> int | None:
    # Each statement is parsed with its table's header alone, so that the parser handles strings, quotes and dots.
    header, statement, began = "", "", 1
    for number, line in enumerate(text.split("\n"), 1):
        statement += line + "\n"
        document = _parsed(header + statement)
        if document is None:
            continue  # the statement continues in the next line
        if _has(document, path):
            return began
        if statement.lstrip().startswith("["):
            header = statement
        statement, began = "", number + 1
    return None


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except ValueError:
        return None


def _has(document: Any, path: Sequence[str]) -> bool:
    for key in path:
        if not isinstance(document, dict) or key not in document:
            return False
        document = document[key]
    return True


# -- the configuration --------------------------------------------------------------------------


LAWS = ("mltcp_dcqcn", "dcqcn")
MODES = ("tc", "off")
DEFAULT_INTERVAL_S = 0.002
SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S = 0.0005, 0.01

_INTERFACE = re.compile(r"[^\s/]{1,127}")
_ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:]+):(\d{1,5})")
_LONGEST_SOCKET_BYTES = 107
"""The longest path of a Unix socket; source: unix(7)."""


@dataclass(frozen=True)
class Configuration:
    """The settings of the daemon.

    Attributes:
        socket: path of the socket.
        group: its members may connect.
        interfaces: on which jobs are paced.
        asked_controls: the controls to load; None: see `controls`.
        default_control: of jobs that ask for none, if nothing is paced.
        metrics: HOST:PORT for Prometheus; None: not served.
        replace_qdisc: whether a root qdisc that is not the kernel's default may be replaced.
        journal: path of the journal of changes to the host.
        pacing: ``tc`` or ``off``.
        law: ``mltcp_dcqcn`` or ``dcqcn``.
        interval_s: of control.
        line_rate_bps: of the interfaces; None: as they report it.
        constants: of the rate law.
        aggressiveness: F of jobs that do not specify it.
        classes: traffic classes that the packets of jobs under eBPF controls say, 2 to 8; 0: none.
        aside_above: the demand of a link above which its jobs stand aside; 0: never.
        fair: whether the connections of a job under an eBPF control grow together like one.
        limits: of users.
    """

    socket: Path = protocol.SOCKET
    group: str = "mltcp"
    interfaces: tuple[str, ...] = ()
    asked_controls: tuple[str, ...] | None = None
    default_control: str = DEFAULT_CONTROL
    metrics: str | None = None
    replace_qdisc: bool = False
    mark: int = HANDLE
    journal: Path = JOURNAL
    pacing: str = "off"
    law: str = LAWS[0]
    interval_s: float = DEFAULT_INTERVAL_S
    line_rate_bps: int | None = None
    constants: Constants = field(default_factory=lambda: _constants({}, DEFAULT_INTERVAL_S))
    aggressiveness: Aggressiveness = field(default_factory=Aggressiveness)
    classes: int = 0
    aside_above: float = ASIDE_ABOVE
    fair: bool = False
    limits: Limits = field(default_factory=Limits)

    @property
    def controls(self) -> tuple[str, ...]:
        """The eBPF congestion controls to load; the default is all of MLTCP's, or none if jobs are paced."""
        if self.asked_controls is not None:
            return self.asked_controls
        return MLTCP_CONTROLS if self.pacing == "off" else ()

    def with_overrides(
        self,
        interfaces: Sequence[str] = (),
        metrics: str | None = None,
        replace_qdisc: bool = False,
        socket: Path | None = None,
    ) -> Self:
        """The configuration with the settings of the command line, which take precedence.

        Raises:
            UsageError: an interface or address is malformed.
        """
        changed = self
        if interfaces:
            names = _interfaces(list(interfaces), "--interface")
            changed = replace(changed, interfaces=names, pacing="tc")
        if metrics is not None:
            changed = replace(changed, metrics=_address(metrics, "--metrics"))
        if replace_qdisc:
            changed = replace(changed, replace_qdisc=True)
        return changed if socket is None else replace(changed, socket=socket)


def load(path: Path, interfaces_follow: bool = False) -> Configuration:
    """Load a configuration file; `interfaces_follow` if the command line names interfaces.

    Raises:
        UsageError: it cannot be read, or a field is malformed.
    """
    text = _text_of(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {_syntax_error_text(error, text)}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: a number in it is too long, or it is nested too deeply") from None
    return _Reader(path, text, interfaces_follow).configuration(document)


def _text_of(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    try:
        return content.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        found = f"byte 0x{content[error.start]:02x}"
        raise UsageError(f"{path}: line {line}: {found} is not UTF-8") from None


def _syntax_error_text(error: tomllib.TOMLDecodeError, text: str) -> str:
    """The text of a syntax error, with its line first as in the other errors."""
    message = " ".join(str(error).split())
    found = re.fullmatch(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", message)
    if found is None:
        return message
    return f"line {found[2] or len(text.splitlines())}: {found[1]}"


class _Reader:
    """Converts a TOML document to a configuration."""

    def __init__(self, path: Path, text: str, interfaces_follow: bool) -> None:
        self._path = path
        self._text = text
        self._interfaces_follow = interfaces_follow

    def configuration(self, document: dict[str, Any]) -> Configuration:
        values = self._table([], document, _FIELDS, ("pacing", "function", "limits"))
        pacing = self._table(["pacing"], document.get("pacing", {}), _PACING, ("constants",))
        function = self._table(["function"], document.get("function", {}), _FUNCTION)
        interval_s = pacing.pop("interval_s", DEFAULT_INTERVAL_S)
        constants = self._constants(document.get("pacing", {}), interval_s)
        pacing.setdefault("pacing", "tc" if values.get("interfaces") else "off")
        if pacing["pacing"] == "tc" and not (values.get("interfaces") or self._interfaces_follow):
            raise self._fault(
                ["pacing", "mode"],
                "pacing.mode: expected off, or interfaces to pace on, got 'tc' without any",
            )
        law = self._checked(["function"], _aggressiveness, function)
        limits = Limits(**self._table(["limits"], document.get("limits", {}), _LIMITS))
        return Configuration(
            **values,
            **pacing,
            interval_s=interval_s,
            constants=constants,
            aggressiveness=law,
            limits=limits,
        )

    def _constants(self, pacing: Any, interval_s: float) -> Constants:
        table = pacing.get("constants", {}) if isinstance(pacing, dict) else {}
        checks = {name: (name, _constant(name)) for name in CONSTANTS}
        return _constants(self._table(["pacing", "constants"], table, checks), interval_s)

    def _table(
        self,
        path: Sequence[str],
        table: Any,
        fields: Mapping[str, tuple[str, Check]],
        tables: Sequence[str] = (),
    ) -> dict[str, Any]:
        if not isinstance(table, dict):
            raise self._fault(
                path, f"{_dotted(path)}: expected a table, [{'.'.join(path)}], got {shown(table)}"
            )
        values = {}
        for name, value in table.items():
            if name in tables:
                continue
            if name not in fields:
                allowed = ", ".join([*fields, *(f"[{each}]" for each in tables)])
                raise self._fault(
                    [*path, name], f"{_dotted([*path, name])}: unknown field, expected {allowed}"
                )
            target, check = fields[name]
            values[target] = self._checked([*path, name], check, value)
        return values

    def _checked(self, path: Sequence[str], check: Check, value: Any) -> Any:
        try:
            return check(value, _dotted(path))
        except UsageError as error:
            raise self._fault(path, str(error)) from None

    def _fault(self, path: Sequence[str], message: str) -> UsageError:
        return UsageError(f"{self._path}: line {line_of(self._text, path)}: {message}")


Check = Callable[[Any, str], Any]
"""Checks and converts the value of a field, whose name its error begins with."""


def _dotted(path: Sequence[str]) -> str:
    return ".".join(name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else shown(name) for name in path)


def _constants(given: Mapping[str, float], interval_s: float) -> Constants:
    """The constants of the law; the default of its timers is the control interval, so that each interval is a step."""
    values: dict[str, Any] = {"timer": interval_s, "alpha_timer": interval_s, **given}
    return Constants(**values)


def _aggressiveness(given: Mapping[str, Any], field: str) -> Aggressiveness:
    try:
        return Aggressiveness.of_shape(**{"shape": Shape.LINEAR, **given})
    except UsageError as error:
        raise UsageError(f"{field}: {error}") from None


def _constant(name: str) -> Check:
    between = _between(*CONSTANTS[name])
    if name != "fast_recovery_steps":
        return between

    def whole(value: Any, field: str) -> int:
        number = between(value, field)
        if number != int(number):
            raise UsageError(f"{field}: expected a whole number, got {shown(value)}")
        return int(number)

    return whole


def _whole(lowest: int, highest: int) -> Check:
    def check(value: Any, field: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise UsageError(
                f"{field}: expected a whole number between {lowest} and {highest}, got {shown(value)}"
            )
        return value

    return check


def _mark(value: Any, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value & ~MARK_MASK:
        raise UsageError(
            f"{field}: expected 0 or a number whose upper 16 bits only are set, such as {HANDLE:#x}, got {shown(value)}"
        )
    return value


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{field}: expected a non-empty string, got {shown(value)}")
    return value


def _path(value: Any, field: str) -> Path:
    if not _text(value, field).startswith("/") or "\0" in value:
        raise UsageError(f"{field}: expected an absolute path, got {shown(value)}")
    return Path(value)


def _socket_path(value: Any, field: str) -> Path:
    path = _path(value, field)
    if len(bytes(path)) > _LONGEST_SOCKET_BYTES:
        raise UsageError(
            f"{field}: expected a path of at most {_LONGEST_SOCKET_BYTES} bytes, got {shown(value)}"
        )
    return path


def _flag(value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{field}: expected true or false, got {shown(value)}")
    return value


def _one_of(allowed: Sequence[str]) -> Check:
    def check(value: Any, field: str) -> str:
        if value not in allowed:
            raise UsageError(f"{field}: expected one of {', '.join(allowed)}, got {shown(value)}")
        return str(value)

    return check


def _control_of(allowed: Iterable[str]) -> Check:
    check = _one_of(tuple(allowed))
    return lambda value, field: check(control_name(value) if isinstance(value, str) else value, field)


def _between(lowest: float, highest: float) -> Check:
    def check(value: Any, field: str) -> float:
        return check_number(value, field=field, lowest=lowest, highest=highest)

    return check


def _several(check: Check, noun: str) -> Check:
    def checked(value: Any, field: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise UsageError(f"{field}: expected a list of {noun}, got {shown(value)}")
        found = tuple(check(each, field) for each in value)
        for each in found:
            if found.count(each) > 1:
                raise UsageError(f"{field}: expected each of the {noun} once, got {shown(each)} twice")
        return found

    return checked


def _interface(value: Any, field: str) -> str:
    if not isinstance(value, str) or not _INTERFACE.fullmatch(value) or value in (".", ".."):
        raise UsageError(
            f"{field}: expected an interface name (1 to 15 characters, or 127 of an altname; no / and no blank), "
            f"got {shown(value)}"
        )
    return value


def _address(value: Any, field: str) -> str:
    found = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if found is None or not 0 < int(found[2]) < 65536:
        raise UsageError(f"{field}: expected HOST:PORT, such as 127.0.0.1:9464, got {shown(value)}")
    return str(value)


def _classes(value: Any, field: str) -> int:
    return 0 if type(value) is int and value == 0 else _whole(2, CLASSES)(value, field)


def _aside_above(value: Any, field: str) -> float:
    return 0.0 if value == 0 and value is not False else _between(1, MOST_SAMPLED)(value, field)


def _line_rate(value: Any, field: str) -> int:
    return parse_rate_bps(value, field=field, lowest=MIN_LINE_RATE_BPS, highest=MAX_LINE_RATE_BPS)


def _shape(value: Any, field: str) -> Shape:
    return Shape.from_name(_one_of([shape.label for shape in Shape])(value, field))


_interfaces = _several(_interface, "interfaces")

_FIELDS: dict[str, tuple[str, Check]] = {
    "socket": ("socket", _socket_path),
    "group": ("group", _text),
    "interfaces": ("interfaces", _interfaces),
    "controls": ("asked_controls", _several(_control_of(CONTROLS), "controls")),
    "default_control": ("default_control", _control_of(MLTCP_CONTROLS)),
    "metrics": ("metrics", _address),
    "replace_qdisc": ("replace_qdisc", _flag),
    "journal": ("journal", _path),
    "classes": ("classes", _classes),
    "aside_above": ("aside_above", _aside_above),
    "fair": ("fair", _flag),
}

_PACING: dict[str, tuple[str, Check]] = {
    "mode": ("pacing", _one_of(MODES)),
    "law": ("law", _one_of(LAWS)),
    "interval": ("interval_s", _between(SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S)),
    "line_rate": ("line_rate_bps", _line_rate),
    "mark": ("mark", _mark),
}

_FUNCTION: dict[str, tuple[str, Check]] = {
    "shape": ("shape", _shape),
    "slope": ("slope", _between(0, LARGEST_FACTOR)),
    "intercept": ("intercept", _between(SMALLEST_INTERCEPT, LARGEST_FACTOR)),
}

_LIMITS: dict[str, tuple[str, Check]] = {
    "factor": ("factor", _between(SMALLEST_INTERCEPT, LARGEST_FACTOR)),
    "controls": ("controls", _several(_text, "controls")),
    "jobs": ("jobs", _whole(1, LAST_NUMBER)),
    "attached": ("attached", _whole(0, LAST_NUMBER)),
    "connections": ("connections", _whole(1, 65536)),
    "seconds": ("seconds", _between(0.001, 1)),
    "workers": ("workers", _whole(2, 4096)),
}
