"""``mltcp-placement serve``: the placement service in a process of its own."""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mltcp.core.address import Address
from mltcp.core.errors import UsageError
from mltcp.core.quantities import BINARY_SIZES, parse_number, parse_rate_bps, parse_size_bytes
from mltcp.core.subcommands import add_command
from placement.cassini.drift import THRESHOLD
from placement.cli.service.listening import print_listening
from placement.engines.bounded_log import LOG_BYTES, SMALLEST_LOG_BYTES
from placement.model.throughput_table import COMBINATIONS
from placement.policies.catalogue import placement_names

if TYPE_CHECKING:
    from placement.engines.engine import Engine
    from placement.service.context import ServiceRules
    from placement.service.embedded_gate import EmbeddedGate
    from placement.service.job_classes import ClassRules
    from placement.service.protocol import placement_pb2 as pb
    from placement.service.server import ServiceConfiguration

_EXAMPLES = """\
examples:
  mltcp-placement serve --cluster cluster.json                     on the user's own socket, with policy lwf-1
  mltcp-placement serve --cluster cluster.json --policy themis+cassini --lease 60
  mltcp-placement serve --cluster cluster.json --policy elastic-mh --engine local --hosts hosts.json
  mltcp-placement serve --cluster cluster.json --policy greedy --table published --engine local --hosts hosts.json
  mltcp-placement serve --cluster cluster.json --policy learned-look --fallback greedy --shadow reopt-look
                        --round 300 --table measured --engine slurm        a rule decides where the policy fails
  mltcp-placement serve --address 10.0.0.1:7410 --certificate cert.pem --key key.pem --tokens tokens.txt
  mltcp-placement serve --cluster cluster.json --engine local --hosts hosts.json        also runs the jobs
  mltcp-placement serve --engine slurm --nic 25gbit --sbatch "--partition=train --cpus-per-gpu=8"   runs them in Slurm
  mltcp-placement serve --cluster cluster.json --gate unix:/run/mltcp/gate.sock,srsf-1  also gates their all-reduces

cluster.json:
  {"servers": [{"name": "s0", "gpus": 4, "gpu_memory_mb": 32768, "nic_bps": 50000000000, "switch": "rack0"}, ...],
   "links": [{"switch": "rack0", "above": "core", "capacity_bps": 100000000000}, ...]}
More servers and links can be registered while the service runs. They and all jobs survive a restart.

A line of tokens.txt is "TOKEN" or "operator NAME TOKEN", which may do everything, or "user NAME TOKEN", which may
submit jobs and change its own (docs/security.md).
"""


_LONGEST_S = 86_400


def _log_bytes(text: str) -> int:
    return parse_size_bytes(text, field="--log-bytes", units=BINARY_SIZES, lowest=SMALLEST_LOG_BYTES)


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``serve`` to the commands."""
    command = add_command(commands, "serve", execute, _EXAMPLES)
    command.add_argument(
        "--address", metavar="ADDRESS", help="unix:/path or host:port (default as for the other commands)"
    )
    command.add_argument(
        "--state", type=Path, metavar="FILE", help="its database (default ~/.local/state/mltcp/placement.db)"
    )
    command.add_argument(
        "--cluster", type=Path, metavar="FILE", help="servers and links to register at the start"
    )
    command.add_argument("--metrics", metavar="HOST:PORT", help="serve Prometheus metrics there")
    command.add_argument("--json", action="store_true", help="print the address as a line of JSON")
    _add_rules(command.add_argument_group("decisions"))
    _add_security(command.add_argument_group("security"))
    command.add_argument(
        "--gate",
        metavar="ADDRESS[,POLICY]",
        help="run a gate for all-reduces too: srsf-N, ada-srsf, ada-srsf-k or srtf-yield (default ada-srsf)",
    )
    _add_engine(command.add_argument_group("engine"))
    _add_classes(command.add_argument_group("traffic classes of the engine's jobs (docs/service.md)"))


def _add_rules(rules: argparse._ArgumentGroup) -> None:
    rules.add_argument(
        "--policy",
        default="lwf-1",
        metavar="NAME",
        help=f"{', '.join(placement_names('-K'))}, themis or pollux, each alone or with +cassini; or a "
        "scheduler of whole jobs, which moves them: drs, norm, edf-late-last-node, elastic-mh, greedy, reopt, "
        "learned, ... (default lwf-1)",
    )
    rules.add_argument(
        "--table",
        default="",
        metavar="DIR",
        help="of throughputs and contention ratios; jobs name their models. published: the shipped one",
    )
    rules.add_argument(
        "--combination",
        choices=COMBINATIONS,
        help="of a job's ratios beside several neighbours in that table (default minimum)",
    )
    rules.add_argument(
        "--round",
        metavar="TIME",
        help="a scheduler of whole jobs decides at multiples of this time only, such as 5s "
        "(default: 300 s for the schedulers in rounds, none for others)",
    )
    rules.add_argument(
        "--fallback",
        default="",
        metavar="NAME",
        help="the rule that decides where the policy fails, which then runs in a process of its own",
    )
    rules.add_argument(
        "--decision-limit",
        metavar="TIME",
        help="the time that the policy has for a decision, with --fallback or --shadow (default 1s)",
    )
    rules.add_argument(
        "--shadow",
        default="",
        metavar="NAME",
        help="ask this policy about every decision too, without effect (status shows how often it agrees)",
    )
    rules.add_argument(
        "--promote",
        choices=("confirm", "allow"),
        help="when evidence favours the shadow: wait for mltcp-placement promote, or make it the policy "
        "(default confirm); it is rolled back when the evidence turns",
    )
    rules.add_argument(
        "--lease",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long the agent of a job may be gone before the job is taken for ended (default 30)",
    )
    rules.add_argument(
        "--patience",
        type=float,
        default=3600.0,
        metavar="SECONDS",
        help="a job that has waited for longer is placed before all others without a deadline (default 3600)",
    )
    rules.add_argument(
        "--keep-ended",
        default="30,100000",
        metavar="DAYS,JOBS",
        help="forget jobs that have been over for longer, and the oldest beyond this number (default 30,100000)",
    )
    rules.add_argument(
        "--jobs-per-user",
        default="10000",
        metavar="JOBS",
        help="refuse further jobs of a user who has this number that are not over (default 10000; 100000 in all)",
    )
    rules.add_argument(
        "--drift",
        type=float,
        default=THRESHOLD,
        metavar="SHARE",
        help=f"delay jobs that drift by more than this fraction of an iteration (default {THRESHOLD})",
    )


def _add_security(security: argparse._ArgumentGroup) -> None:
    security.add_argument(
        "--certificate", type=Path, metavar="FILE", help="use TLS with this certificate, PEM"
    )
    security.add_argument("--key", type=Path, metavar="FILE", help="private key of the certificate, PEM")
    security.add_argument(
        "--client-ca",
        type=Path,
        metavar="FILE",
        help="accept only clients with a certificate of one of these authorities, PEM (mutual TLS)",
    )
    security.add_argument(
        "--tokens", type=Path, metavar="FILE", help="accept only calls with a token in this file"
    )
    security.add_argument(
        "--plain-text-tokens", action="store_true", help="accept tokens over TCP without TLS too"
    )
    security.add_argument(
        "--socket-mode", default="600", metavar="MODE", help="permissions of a Unix socket (default 600)"
    )


def _add_engine(engine: argparse._ArgumentGroup) -> None:
    engine.add_argument("--engine", choices=("local", "slurm"), help="run the jobs that have a command")
    engine.add_argument("--hosts", type=Path, metavar="FILE", help="the servers' hosts, for --engine local")
    engine.add_argument(
        "--sbatch", metavar="OPTIONS", help="options of sbatch for all jobs, for --engine slurm"
    )
    engine.add_argument(
        "--users-jobs",
        action="store_true",
        help="place the jobs too that users submit to Slurm themselves and job_submit.lua holds (docs/slurm.md)",
    )
    engine.add_argument(
        "--nic",
        metavar="RATE",
        help="of the nodes' links, for --engine slurm without --cluster: all else is read from Slurm",
    )
    engine.add_argument(
        "--uplink",
        metavar="RATE",
        help="of every switch, likewise (default: all that the nodes below can send)",
    )
    engine.add_argument(
        "--logs", type=Path, metavar="DIRECTORY", help="logs of the jobs (default: jobs, beside the state)"
    )
    engine.add_argument(
        "--log-bytes",
        type=_log_bytes,
        default=LOG_BYTES,
        metavar="SIZE",
        help="the most that the log of a rank has: its start and its latest part (default 256M)",
    )
    engine.add_argument(
        "--grace",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="how long a job that is stopped may write its checkpoint, before it is killed (default 30)",
    )
    engine.add_argument(
        "--restart-cost",
        type=float,
        default=7.0,
        metavar="SECONDS",
        help="what schedulers of whole jobs take a restart to cost until one was seen (default 7)",
    )


def _add_classes(classes: argparse._ArgumentGroup) -> None:
    classes.add_argument(
        "--classes",
        metavar="N",
        help="tell each job one of N classes, CS0 to CS(N - 1), or of these DSCPs, the lowest class first, such as "
        "0,10,26,34 (default: jobs are told none)",
    )
    classes.add_argument(
        "--class-rule",
        metavar="RULE",
        help="which jobs go first: intensity, those that compute longest for a byte (default), or remaining, those "
        "with the least GPU time left",
    )
    classes.add_argument(
        "--class-age",
        type=float,
        metavar="SECONDS",
        help="one class more for each such time between a job's submission and its start (default 86400)",
    )
    classes.add_argument(
        "--class-sl",
        action="store_true",
        help="tell jobs the service level of InfiniBand too, the upper half of the DSCP",
    )


def execute(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status."""
    import asyncio

    # gRPC prints a line for each client that fails to connect: whoever can reach the port could fill the log.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from placement.service.protocol.checks import RequestError
    from placement.service.server import serve

    def ready(address: Address) -> None:
        print_listening("placement service", address, options.policy, options.json)

    with ExitStack() as stack:
        configuration = _configuration(options, stack)
        try:
            asyncio.run(serve(configuration, ready))
        except RequestError as error:
            raise UsageError(f"--cluster {options.cluster}: {error}") from None
    return 0


def _configuration(options: argparse.Namespace, stack: ExitStack) -> ServiceConfiguration:
    from placement.service.decisions.policy import decides_for_all
    from placement.service.protocol.connection import default_address
    from placement.service.protocol.documents import cluster_from_file
    from placement.service.protocol.security import Security
    from placement.service.server import ServiceConfiguration

    if not 0 < options.lease <= 86_400:
        raise UsageError(f"--lease: expected more than 0 and at most 86400 s, got {options.lease:g}")
    if not 0 < options.drift <= 0.5:
        raise UsageError(f"--drift: expected more than 0 and at most 0.5, got {options.drift:g}")
    for name, value in (("--grace", options.grace), ("--restart-cost", options.restart_cost)):
        if not 0 <= value <= 86_400:
            raise UsageError(f"{name}: expected 0 to 86400 s, got {value:g}")
    if not options.patience >= 0:
        raise UsageError(f"--patience: expected 0 or more seconds, got {options.patience:g}")
    if decides_for_all(options.policy) and not options.engine:
        raise UsageError(f"--policy: expected --engine with {options.policy}, which moves jobs, got none")
    if options.nic is None:
        servers, links = cluster_from_file(options.cluster) if options.cluster else ((), ())
    else:
        servers, links = _cluster_of_slurm(options)
    state = options.state or _default_state()
    configuration = ServiceConfiguration(
        Address.parse(options.address) if options.address else default_address(),
        state,
        _rules(options),
        Security(
            options.certificate, options.key, options.tokens, options.plain_text_tokens, options.client_ca
        ),
        _mode(options.socket_mode),
        servers,
        links,
        metrics=options.metrics,
    )
    configuration.check()
    if options.engine:
        configuration.security.check_engine(configuration.address, configuration.socket_mode)
    return replace(
        configuration,
        gate=_gate(options.gate, stack) if options.gate else None,
        engine=_engine(options, state, stack) if options.engine else None,
    )


def _rules(options: argparse.Namespace) -> ServiceRules:
    from placement.service.context import DECISION_LIMIT_S, ServiceRules
    from placement.service.decisions.policy import rounds_of

    keep_s, keep = _kept(options.keep_ended)
    limit_s = DECISION_LIMIT_S
    if options.decision_limit is not None:
        limit_s = _seconds(options.decision_limit, "--decision-limit")
        if not (options.fallback or options.shadow):
            raise UsageError(
                f"--decision-limit: expected --fallback or --shadow with it, got {limit_s:g} s alone"
            )
    if options.combination is not None and not options.table:
        raise UsageError(f"--combination: expected --table with it, got {options.combination} alone")
    return ServiceRules(
        policy=options.policy,
        lease_s=options.lease,
        drift_threshold=options.drift,
        grace_s=options.grace,
        restart_cost_s=options.restart_cost,
        patience_s=options.patience,
        keep_ended_s=keep_s,
        keep_ended=keep,
        jobs_of_user=_count(options.jobs_per_user, "--jobs-per-user"),
        table=options.table,
        combination=options.combination or "minimum",
        round_s=rounds_of(options.policy) if options.round is None else _seconds(options.round, "--round"),
        fallback=options.fallback,
        decision_limit_s=limit_s,
        shadow=options.shadow,
        classes=_classes(options),
        promote=options.promote or "",
    )


def _classes(options: argparse.Namespace) -> ClassRules | None:
    from placement.service.job_classes import AGE_S, RULES, parse_classes

    rule, age_s = options.class_rule, options.class_age
    if options.classes is None:
        for name, given in (
            ("rule", rule is not None),
            ("age", age_s is not None),
            ("sl", options.class_sl),
        ):
            if given:
                raise UsageError(f"--class-{name}: expected --classes with it")
        return None
    if not options.engine:
        raise UsageError("--classes: expected --engine with it, which starts the jobs, got none")
    return parse_classes(
        options.classes,
        RULES[0] if rule is None else rule,
        AGE_S if age_s is None else age_s,
        options.class_sl,
    )


def _seconds(text: str, field: str) -> float:
    """A duration such as 5, 5s or 0.5s."""
    return parse_number(text.removesuffix("s"), field=field, lowest=0.01, highest=_LONGEST_S)


def _gate(text: str, stack: ExitStack) -> EmbeddedGate:
    from placement.service.embedded_gate import EmbeddedGate

    address, _, policy = text.partition(",")
    gate = EmbeddedGate(Address.parse(address, "--gate"), policy or "ada-srsf")
    stack.callback(gate.close)
    return gate


def _engine(options: argparse.Namespace, state: Path, stack: ExitStack) -> Engine:
    logs = options.logs or state.parent / "jobs"
    if options.engine == "slurm":
        return _slurm_engine(options, logs, stack)
    from placement.engines.hosts import load_hosts
    from placement.engines.local import LocalEngine

    if options.hosts is None:
        raise UsageError("--engine local: expected --hosts FILE, got none")
    if options.sbatch is not None or options.users_jobs:
        name = "--users-jobs" if options.users_jobs else "--sbatch"
        raise UsageError(f"{name}: expected --engine slurm with it, got local")
    return stack.enter_context(LocalEngine(load_hosts(options.hosts), logs, log_bytes=options.log_bytes))


def _slurm_engine(options: argparse.Namespace, logs: Path, stack: ExitStack) -> Engine:
    import shlex

    from placement.engines.slurm.engine import SlurmEngine
    from placement.service.decisions.policy import decides_for_all

    if options.hosts is not None:
        raise UsageError("--hosts: expected --engine local with it, got slurm, whose nodes are the hosts")
    try:
        further = shlex.split(options.sbatch or "")
    except ValueError as error:
        raise UsageError(f"--sbatch: {str(error).lower()}: {options.sbatch!r}") from None
    if any(not each.startswith("--") or each == "--" for each in further):
        raise UsageError(f"--sbatch: expected options such as --partition=train, got {options.sbatch!r}")
    if options.users_jobs and decides_for_all(options.policy):
        raise UsageError(f"--users-jobs: expected a policy that moves no jobs with it, got {options.policy}")
    return stack.enter_context(
        SlurmEngine(logs, options=further, users_jobs=options.users_jobs, log_bytes=options.log_bytes)
    )


def _cluster_of_slurm(
    options: argparse.Namespace,
) -> tuple[tuple[pb.Server, ...], tuple[pb.Link, ...]]:
    from placement.engines.slurm.cluster import cluster_here
    from placement.service.protocol.documents import cluster_from_document

    if options.engine != "slurm" or options.cluster is not None:
        raise UsageError("--nic: expected --engine slurm and no --cluster with it")
    nic_bps = parse_rate_bps(options.nic, field="--nic")
    uplink_bps = None if options.uplink is None else parse_rate_bps(options.uplink, field="--uplink")
    return cluster_from_document(cluster_here(nic_bps, uplink_bps), "Slurm")


def _kept(text: str) -> tuple[float, int]:
    """For how many seconds jobs that are over are kept, and how many of them."""
    days, _, jobs = text.partition(",")
    keep_s = 86_400 * parse_number(days, field="--keep-ended", lowest=0, highest=36_500)
    if not jobs.isdecimal() or len(jobs) > 9:
        raise UsageError(f"--keep-ended: expected DAYS,JOBS, such as 30,100000, got {text!r}")
    return keep_s, int(jobs)


def _count(text: str, field: str) -> int:
    if not text.isdecimal() or len(text) > 9 or not int(text):
        raise UsageError(f"{field}: expected 1 to 999999999, got {text!r}")
    return int(text)


def _mode(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0o600 <= mode <= 0o777:
        raise UsageError(f"--socket-mode: expected 600 to 777 in octal, got {text}")
    return mode


def _default_state() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    if not os.path.isabs(base):
        raise UsageError("--state: expected FILE, as this account has no home directory, got none")
    return Path(base, "mltcp", "placement.db")
