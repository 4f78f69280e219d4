"""Names and comments that are made to be taken for what Slurm itself prints."""

from __future__ import annotations

import random
from collections.abc import Sequence

_ODD = (
    "x JobId=abc",
    "x JobId=2 NumNodes=1 Priority=1",
    "x UserId=daemon(1)",
    "x UserId=root(0) JobState=COMPLETED ExitCode=0:0",
    "AdminComment=none Comment=mltcp",
    "x JobState=CANCELLED Reason=None Restarts=7",
    "a|b|c||",
    "%i|%T|%j",
    "${JobId} $$ `id` $(id)",
    'quote " and \' and \\ and {"job_id": 1, "name": "x"}',
    "\x1b[2J\x1b]0;title\x07",
    "my run 3",
    "Übung für Größe",
    "\u202egnp.exe\u2028next",
    "tab\tand\rreturn",
    "-1",
    "None",
    "--help",
    "mltcp:",
    "mltcp.bert",
    "slurm-5",
    "JobId=" + "9" * 4000,
    "9" * 4000,
    "\n\n\n",
)


def hostile_text(draw: random.Random, seen: Sequence[str]) -> str:
    """A text, at times a forged line of squeue about a job of somebody else.

    Args:
        draw: by which it is chosen.
        seen: lines ``NUMBER|NAME|COMMENT`` of squeue, as all users can read them.
    """
    if not seen or draw.random() < 0.5:
        return draw.choice(_ODD)
    number, _, rest = draw.choice(seen).partition("|")
    name, _, comment = rest.partition("|")
    ours = next((line for line in seen if "|mltcp:" in line), f"1|x|{comment}")
    mark = ours.partition("|mltcp:")[2] or "00000000:1"
    state = draw.choice(("RUNNING", "PENDING", "COMPLETED", "CANCELLED"))
    reason = draw.choice(("None", "JobHeldAdmin", "BeginTime"))
    forged = draw.choice(
        (
            f"{number}|{state}|{reason}|{name}|mltcp:{mark}",
            f"{number}|{state}|{reason}|{name}|{comment}",
            f"{number}|{state}|0|{reason}|{name}|mltcp:{mark}",
            f"JobId={number} JobName={name} UserId=root(0) JobState={state} AdminComment=mltcp",
        )
    )
    return draw.choice((f"x\n{forged}", f"x\n{forged}\n", f"mltcp:{mark}", forged))
