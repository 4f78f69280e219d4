"""Whether the congestion controls fit other kernels, which are made by hand from what differs."""

import re
import subprocess

import pytest

from mltcp.cli.main import main
from mltcp.core.errors import NotAvailableError
from mltcp.ebpf import build
from mltcp.ebpf.congestion_controls import CONTROLS, SOURCES, control_object
from mltcp.ebpf.kernel_types import KERNEL_STRUCTURES, KernelTypes, has_tx_start_hook, missing
from mltcp.ebpf.libbpf import BpfError

HEADER = (build.HEADERS / "kernel.bpf.h").read_text()
RENO = """
__u32 tcp_reno_ssthresh(struct sock *sk) { return 0; }
void tcp_reno_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) {}
__u32 tcp_reno_undo_cwnd(struct sock *sk) { return 0; }
"""
CUBIC = """
void cubictcp_init(struct sock *sk) {}
void cubictcp_cong_avoid(struct sock *sk, __u32 ack, __u32 acked) {}
__u32 cubictcp_recalc_ssthresh(struct sock *sk) { return 0; }
void cubictcp_state(struct sock *sk, __u8 new_state) {}
void cubictcp_acked(struct sock *sk, const struct ack_sample *sample) {}
"""
EVENT = "void cubictcp_cwnd_event(struct sock *sk, enum tcp_ca_event event) {}"
TX_START = "void cubictcp_cwnd_event_tx_start(struct sock *sk) {}"


@pytest.fixture
def kernel(tmp_path):
    """Makes a file with the types of a kernel that has these functions."""

    def make(functions, hook=False, header=HEADER):
        number = len(list(tmp_path.iterdir()))
        source, target = tmp_path / f"kernel{number}.c", tmp_path / f"kernel{number}.o"
        structures = "".join(f"struct {name} a_{name};\n" for name in KERNEL_STRUCTURES)
        cubic = "struct bictcp { __u32 epoch_start; };\n"
        defined = "#define TX_START_HOOK\n" if hook else ""
        source.write_text(f"{defined}{header}\n{cubic}{structures}{functions}")
        command = ["clang", "-O2", "-g", "-target", "bpf", "-I/usr/include/x86_64-linux-gnu", "-c"]
        subprocess.run([*command, str(source), "-o", str(target)], check=True, capture_output=True)
        return target

    return make


def lacking(kernel):
    return {name: missing(control_object(source, kernel), kernel) for name, source in CONTROLS.items()}


def test_every_control_fits_a_kernel_before_and_one_after_the_hook(kernel):
    before = kernel(RENO + CUBIC + EVENT)
    assert not has_tx_start_hook(before)
    assert not any(lacking(before).values())
    after = kernel(RENO + CUBIC + TX_START, hook=True)
    assert has_tx_start_hook(after)
    assert not any(lacking(after).values())


def test_objects_of_the_other_kind_of_kernel_do_not_fit(kernel):
    after = kernel(RENO + CUBIC + TX_START, hook=True)
    assert missing(build.compiled(SOURCES / "cubic.bpf.c"), after) == ["no function cubictcp_cwnd_event"]
    before = kernel(RENO + CUBIC + EVENT)
    assert missing(build.compiled(SOURCES / "cubic.bpf.c", tx_start_hook=True), before) == [
        "no function cubictcp_cwnd_event_tx_start",
        "no cwnd_event_tx_start in struct tcp_congestion_ops",
    ]


def test_without_cubic_in_the_kernel_only_mltcp_cubic_does_not_fit(kernel):
    found = lacking(kernel(RENO))
    assert "no function cubictcp_init" in found.pop("mltcp_cubic")
    assert not any(found.values())


def test_a_member_that_a_kernel_renames_and_a_function_with_another_parameter_are_named(kernel):
    header = HEADER.replace("tcp_mstamp;", "tcp_clock;")
    functions = RENO.replace("ssthresh(struct sock *sk)", "ssthresh(struct sock *sk, int why)")
    found = missing(control_object("reno"), kernel(functions, header=header))
    assert found == ["tcp_reno_ssthresh takes 2 parameters, not 1", "no tcp_mstamp in struct tcp_sock"]


def test_every_structure_of_the_sources_is_checked():
    texts = [path.read_text() for path in [*build.HEADERS.glob("*.bpf.h"), *build.HEADERS.glob("*.bpf.c")]]
    declared = {
        name
        for text in texts
        for name in re.findall(r"^struct (\w+) \{(?:(?!^struct ).)*?^\} CORE;", text, re.S | re.M)
    }
    # What only the iterator uses, and looks whether it is there.
    other = {"bpf_iter__bpf_sk_storage_map", "bpf_iter_meta", "sock_common___ipv6"}
    assert declared - other == set(KERNEL_STRUCTURES)


def test_a_kernel_without_types_is_told_in_one_line(tmp_path):
    (tmp_path / "vmlinux").write_bytes(b"nothing of the kind")
    with pytest.raises(BpfError, match="cannot read the types in"):
        KernelTypes(tmp_path / "vmlinux")
    with pytest.raises(NotAvailableError, match="CONFIG_DEBUG_INFO_BTF"):
        control_object("reno", tmp_path / "vmlinux")


def test_probe_of_another_kernel_names_what_it_lacks(kernel, capsys):
    assert main(["probe", "--kernel", str(kernel(RENO))]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"^ok +kernel functions for mltcp_reno +all there$", printed, re.M)
    assert re.search(r"^MISSING kernel functions for mltcp_cubic +no function cubictcp_init", printed, re.M)
    assert printed.endswith("the kernel mode cannot run there: see what is MISSING above\n")
    assert main(["probe", "--kernel", str(kernel(RENO + CUBIC + EVENT))]) == 0
    assert main(["probe", "--kernel", "/no/such/vmlinux"]) == 2
