"""Which rules of others use the bits of jobs' marks, from the text in which iptables, nft and ip list them."""

import pytest

from mltcp.daemon.jobs.job_table import LAST_NUMBER
from mltcp.pacing.mark_users import MarkSpace, colliding
from mltcp.pacing.tc.qdiscs import HANDLE

DEFAULT = MarkSpace(HANDLE, LAST_NUMBER)

OF_OTHERS = """
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-MARK-DROP -j MARK --or-mark 0x8000
-A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP
-A cali-x -m mark --mark 0x10000/0x10000 -j ACCEPT
-A x -m connmark --mark 0x6d6c0010 -j ACCEPT
-A x -j CONNMARK --restore-mark
meta mark and 0x00008000 == 0x00008000 drop
meta mark set mark or 0x4000
meta mark set meta mark & 0xffffbfff ^ 0x00004000
ct mark set 0x6d6c0010
32764:	not from all fwmark 0xca6c lookup 51820
32765:	from all fwmark 0x1 lookup 100
32766:	from all lookup main
"""

OF_OURS = """
-A cali-y -j MARK --set-xmark 0x0/0xf0000
-A cali-y -m mark --mark 0x40000/0x40000 -j ACCEPT
-A x -j MARK --set-mark 7
-A x -j MARK --and-mark 0xffff
-A x -j MARK --xor-mark 0x1
-A x -m mark --mark 0x6d6c0010 -j DROP
meta mark set 0x00000001
meta mark set ct mark
meta mark set mark and 0xffff0000
meta mark and 0x6d6c0000 == 0x6d6c0000 accept
meta mark 0x6d6c0011 drop
32765:	from all fwmark 0x60000000/0xf0000000 lookup 100
"""


@pytest.mark.parametrize("rule", OF_OTHERS.strip().splitlines())
def test_a_rule_on_other_bits_is_none(rule):
    assert list(colliding([rule], DEFAULT)) == []


@pytest.mark.parametrize("rule", OF_OURS.strip().splitlines())
def test_a_rule_on_our_bits_is_one(rule):
    assert list(colliding([f"  {rule}\n"], DEFAULT)) == [rule]


def test_with_other_marks_other_rules_collide():
    rules = ["-A x -m mark --mark 0x6d6c0010 -j DROP", "-A cali -m mark --mark 0x10000/0x10000 -j ACCEPT"]
    assert list(colliding(rules, MarkSpace(0x00110000, LAST_NUMBER))) == rules[1:]
