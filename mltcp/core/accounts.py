"""Accounts of this host: names, and what uids without one have in common."""

from __future__ import annotations

import pwd

NAMELESS = "accounts without a name"
"""The share of all uids that no account has: a range in /etc/subuid gives a user 65,536 of them."""


def account_name(uid: int) -> str | None:
    """The name of an account of this host; None: no account has this uid."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return None


def share_of(uid: int) -> str:
    """What a uid is counted with, where a limit is one on all: its account, or all uids without one."""
    return NAMELESS if account_name(uid) is None else f"uid {uid}"
