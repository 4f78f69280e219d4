"""What a process may do is decided by its capabilities, not by its user."""

import pytest

from mltcp.core import capabilities
from mltcp.core.capabilities import CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, CAP_SYS_ADMIN, missing, require
from mltcp.core.errors import NotAvailableError


@pytest.mark.parametrize(
    ("present", "lacking"),
    [
        ({CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, CAP_SYS_ADMIN}, []),
        ({CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON}, ["CAP_SYS_ADMIN"]),
        ({CAP_SYS_ADMIN, CAP_NET_ADMIN}, []),
        ({CAP_SYS_ADMIN}, ["CAP_NET_ADMIN"]),
        ({CAP_BPF}, ["CAP_NET_ADMIN", "CAP_PERFMON", "CAP_SYS_ADMIN"]),
        (set(), ["CAP_BPF", "CAP_NET_ADMIN", "CAP_PERFMON", "CAP_SYS_ADMIN"]),
    ],
)
def test_which_are_missing_for_the_kernel_mode(monkeypatch, present, lacking):
    monkeypatch.setattr(capabilities, "effective", lambda: frozenset(present))
    assert missing(capabilities.KERNEL_MODE) == lacking
    if not lacking:
        require("it")
    else:
        with pytest.raises(NotAvailableError, match="it needs root .* lacks " + ", ".join(lacking)):
            require("it")
