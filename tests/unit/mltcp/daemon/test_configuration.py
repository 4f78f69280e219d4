"""The configuration file: its fields, and errors with file, line and field."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mltcp.control.aggressiveness import Shape
from mltcp.core.errors import UsageError
from mltcp.core.policy_names import DEFAULT_CONTROL
from mltcp.daemon.service.configuration import Configuration, load
from mltcp.ebpf.congestion_controls import MLTCP_CONTROLS

FULL = """\
socket = "/run/other.sock"
group = "trainers"
interfaces = ["eth0", "ib0"]
controls = ["mltcp_cubic"]
default_control = "mltcp_reno"
metrics = "[::1]:9464"
replace_qdisc = true
classes = 4
fair = true
aside_above = 1.5
journal = "/var/tmp/journal"

[pacing]
mode = "tc"
law = "dcqcn"
interval = 0.005
line_rate = "25gbit"
mark = 0x110000

[pacing.constants]
alpha_gain = 0.25
fast_recovery_steps = 3.0

[function]
shape = "quadratic"
slope = 1.5
intercept = 0.5
"""


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "mltcpd.toml"
        path.write_text(text)
        return path

    return write


def test_mltcp_is_the_default_control(file):
    found = load(file('controls = ["mltcp"]\ndefault_control = "mltcp"\n'))
    assert (found.controls, found.default_control) == ((DEFAULT_CONTROL,), DEFAULT_CONTROL)


@pytest.mark.parametrize("text", ["default_control = 5", "controls = [5]"])
def test_a_control_that_is_no_text_is_named(file, text):
    with pytest.raises(UsageError, match=f"{text.split()[0]}: expected one of .*mltcp_cubic.*, got 5"):
        load(file(text + "\n"))


def test_every_field_arrives(file):
    found = load(file(FULL))
    assert (found.socket, found.group) == (Path("/run/other.sock"), "trainers")
    assert found.interfaces == ("eth0", "ib0")
    assert (found.controls, found.default_control) == (("mltcp_cubic",), "mltcp_reno")
    assert (found.metrics, found.replace_qdisc) == ("[::1]:9464", True)
    assert (found.classes, found.fair, found.aside_above) == (4, True, 1.5)
    assert (found.pacing, found.law, found.interval_s) == ("tc", "dcqcn", 0.005)
    assert (found.line_rate_bps, found.mark) == (25_000_000_000, 0x110000)
    assert repr((found.constants.alpha_gain, found.constants.fast_recovery_steps)) == "(0.25, 3)"
    assert found.constants.timer == 0.005  # one step of the law each interval, unless it is said
    assert found.aggressiveness.shape is Shape.QUADRATIC


def test_an_empty_file_is_the_default(file):
    assert load(file("")) == Configuration()


def test_naming_an_interface_means_pacing_and_no_ebpf(file):
    found = load(file('interfaces = ["eth0"]\n'))
    assert (found.pacing, found.controls) == ("tc", ())
    assert Configuration().controls == MLTCP_CONTROLS
    assert Configuration().with_overrides(interfaces=["eth1"]).interfaces == ("eth1",)


RATE = (
    "pacing.line_rate: expected a number with unit kbit, mbit, gbit or tbit, such as 200mbit, "
    "between 1mbit and 400gbit, got '10'"
)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("socket = 3\n", 1, "socket: expected a non-empty string, got 3"),
        ('\nsocket = "run"\n', 2, "socket: expected an absolute path, got 'run'"),
        ('interfaces = "eth0"\n', 1, "interfaces: expected a list of interfaces, got 'eth0'"),
        ('interfaces = ["a/b"]\n', 1, "interfaces: expected an interface name (1 to 15 characters"),
        (
            'interfaces = ["eth0", "eth0"]\n',
            1,
            "interfaces: expected each of the interfaces once, got 'eth0' twice",
        ),
        ('controls = ["bbr"]\n', 1, "controls: expected one of mltcp_reno, mltcp_cubic"),
        ('metrics = "9464"\n', 1, "metrics: expected HOST:PORT, such as 127.0.0.1:9464, got '9464'"),
        ("replace_qdisc = 1\n", 1, "replace_qdisc: expected true or false, got 1"),
        ("colour = 1\n", 1, "colour: unknown field, expected socket, group"),
        ("[pace]\n", 1, "pace: unknown field, expected socket, group"),
        ('[pacing]\n\nmode = "fast"\n', 3, "pacing.mode: expected one of tc, off, got 'fast'"),
        ('[pacing]\nmode = "tc"\n', 2, "pacing.mode: expected off, or interfaces to pace on, got 'tc'"),
        ("[pacing]\ninterval = 1\n", 2, "pacing.interval: expected a number between 0.0005 and 0.01, got 1"),
        (
            "[pacing]\ninterval = nan\n",
            2,
            "pacing.interval: expected a number between 0.0005 and 0.01, got nan",
        ),
        ('[pacing]\nline_rate = "10"\n', 2, RATE),
        *(
            (f"[pacing]\nmark = {mark}\n", 2, "pacing.mark: expected 0 or a number whose upper 16 bits only")
            for mark in ("1", "0x6d6c0001", "0x100000000", "-65536", "true", '"0x6d6c0000"')
        ),
        (
            "# a\n[pacing.constants]\nbeta = 1\n",
            3,
            "pacing.constants.beta: unknown field, expected alpha_gain,",
        ),
        (
            "[pacing.constants]\nalpha_gain = 2\n",
            2,
            "pacing.constants.alpha_gain: expected a number between 0.0001 and 1, got 2",
        ),
        (
            "pacing.constants.timer = true\n",
            1,
            "pacing.constants.timer: expected a number between 0.0001 and 1, got True",
        ),
        ("pacing = 1\n", 1, "pacing: expected a table, [pacing], got 1"),
        ('[function]\nshape = "cubic"\n', 2, "function.shape: expected one of one, linear,"),
        ("[function]\nshape = 3\n", 2, "function.shape: expected one of one, linear,"),
        (
            "[function]\nintercept = 0\n",
            2,
            "function.intercept: expected a number between 1.52588e-05 and 64, got 0",
        ),
        (
            "[function]\nslope = 40\nintercept = 40\n",
            1,
            "function: slope + intercept: expected at most 64, got 80",
        ),
        (
            "[pacing.constants]\nfast_recovery_steps = 2.5\n",
            2,
            "pacing.constants.fast_recovery_steps: expected a whole number, got 2.5",
        ),
        (
            "[pacing.constants]\nfast_recovery_steps = 101\n",
            2,
            "pacing.constants.fast_recovery_steps: expected a number between 0 and 100, got 101",
        ),
        ("\npacing = { constants = { beta = 1 } }\n", 2, "pacing.constants.beta: unknown field"),
        (
            "[pacing]\n[[pacing.constants]]\n",
            2,
            "pacing.constants: expected a table, [pacing.constants], got [{}]",
        ),
        (f'socket = "/{"a" * 107}"\n', 1, "socket: expected a path of at most 107 bytes, got '/aaa"),
        ('\n"a\\u001b\\nb" = 1\n', 2, r"'a\x1b\nb': unknown field"),
        (
            f"\ngroup = 0x{'f' * 5000}\n",
            2,
            "group: expected a non-empty string, got a value too large to show",
        ),
        ("socket = \n", 1, "Invalid value"),
        ('\nsocket = "abc', 2, "Unterminated string"),
        ("[pacing]\n[pacing]\n", 2, "Cannot declare"),
    ],
)
def test_a_fault_is_one_line_with_file_line_field_and_what_is_allowed(file, text, line, what):
    path = file(text)
    with pytest.raises(UsageError) as raised:
        load(path)
    told = str(raised.value)
    assert told.startswith(f"{path}: line {line}: {what}"), told
    assert "\n" not in told


@pytest.mark.parametrize("text", ["x = " + "1" * 5000, "x = " + "[" * 5000])
def test_what_the_parser_cannot_hold_is_refused_too(file, text):
    with pytest.raises(
        UsageError, match=r"mltcpd.toml: a number in it is too long, or it is nested too deeply$"
    ):
        load(file(text))


def test_a_byte_that_is_no_text_is_told_with_its_line(tmp_path):
    path = tmp_path / "mltcpd.toml"
    path.write_bytes(b'group = "a"\n\n# caf\xe9\n')
    with pytest.raises(UsageError, match=r"mltcpd.toml: line 3: byte 0xe9 is not UTF-8$"):
        load(path)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"interfaces": ["a/b"]}, "--interface: expected an interface name .*, got 'a/b'"),
        ({"interfaces": ["a", "a"]}, "--interface: expected each of the interfaces once, got 'a' twice"),
        ({"metrics": "9464"}, "--metrics: expected HOST:PORT, such as 127.0.0.1:9464, got '9464'"),
    ],
)
def test_arguments_that_cannot_be_are_named(given, told):
    with pytest.raises(UsageError, match=f"^{told}"):
        Configuration().with_overrides(**given)


def test_interfaces_may_come_from_the_command_line(file):
    path = file('[pacing]\nmode = "tc"\n')
    assert load(path, interfaces_follow=True).with_overrides(interfaces=["eth0"]).interfaces == ("eth0",)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"nosuch.toml: No such file"):
        load(tmp_path / "nosuch.toml")


TEXTS = st.text(alphabet=st.sampled_from(list("[]=\"\n .#'abceghinoprstu_0123456789,{}\x00é")), max_size=120)


CHANGED = st.tuples(st.sampled_from(FULL.splitlines()), TEXTS).map("".join)


@given((TEXTS | CHANGED | st.text()).map(lambda text: text.encode(errors="ignore")) | st.binary())
def test_any_content_loads_or_is_refused_in_one_line(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    told = str(path)
    try:
        load(path)
    except UsageError as error:
        told = str(error)
    assert told.startswith(str(path))
    assert "\n" not in told
