"""The ``mltcp-placement`` command: simulate | compare | plot | fit | gate."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from mltcp.core.errors import MltcpError, UsageError
from mltcp.core.signals import exit_on_sigterm
from placement.cli.service import explain as explain_command
from placement.cli.service import gate as gate_command
from placement.cli.service import score as score_command
from placement.cli.service import serve as serve_command
from placement.cli.service import shifts as shifts_command
from placement.cli.service import status as status_command
from placement.cli.service import submit as submit_command
from placement.cli.simulation import circle as circle_command
from placement.cli.simulation import compare as compare_command
from placement.cli.simulation import fit as fit_command
from placement.cli.simulation import plot as plot_command
from placement.cli.simulation import profile as profile_command
from placement.cli.simulation import schedule as schedule_command
from placement.cli.simulation import simulate as simulate_command

_EXAMPLES = """\
examples:
  mltcp-placement simulate --trace trace.csv --placement lwf --communication ada-srsf
  mltcp-placement compare --fresh 100 --policies lwf-1+srsf-1,lwf-1+ada-srsf -o comparison
  mltcp-placement plot cdf comparison -o jct.svg
  mltcp-placement fit contention.csv
  mltcp-placement schedule --trace poisson --seeds 0:5
  mltcp-placement gate --listen unix:/run/mltcp/gate.sock
  mltcp-placement serve --cluster cluster.json --policy lwf-1+cassini
  mltcp-placement submit --id bert-7 --gpus 4 --iterations 20000 --profile bert.json
"""


class _Parser(argparse.ArgumentParser):
    """Tells what is wrong with the arguments in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; `{self.prog} --help` says what is allowed")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="mltcp-placement",
        description="Simulate where training jobs are placed in a cluster and when they communicate.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (
        simulate_command,
        compare_command,
        plot_command,
        fit_command,
        gate_command,
        schedule_command,
        circle_command,
        profile_command,
        serve_command,
        submit_command,
        status_command,
        score_command,
        shifts_command,
        explain_command,
    ):
        command.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; returns the exit status (0 well, 1 failure, 2 bad usage, 130 interrupted)."""
    exit_on_sigterm()
    try:
        options = _parser().parse_args(arguments)
        status = int(options.execute(options))
        sys.stdout.flush()
        return status
    except UsageError as error:
        return _say(error, 2)
    except MltcpError as error:
        return _say(error, 1)
    except KeyboardInterrupt as interrupt:
        return _say(interrupt.args[0] if interrupt.args else "interrupted", 130)
    except BrokenPipeError:
        # Nobody reads on. What is left in the buffer must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _say(message: object, status: int) -> int:
    print(f"mltcp-placement: {message}", file=sys.stderr)
    return status
