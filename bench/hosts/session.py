"""A session: the agents of all hosts, on which ranks of jobs are started and counters are read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.compare.results.runs import HostFacts
from bench.hosts.connection import AgentConnection, HostError
from bench.hosts.hosts_file import RemoteHost
from bench.hosts.messages import (
    CheckControls,
    CheckSockets,
    FindPort,
    LaunchRank,
    ReadClock,
    ReadLoad,
    StartLoad,
    StartProgram,
    TakeFile,
)
from bench.hosts.remote_rank import RemoteRank
from bench.hosts.shared_directory import SharedDirectory
from bench.workloads.job import JobSpec, RankError
from bench.workloads.launched_rank import LaunchedRank, RankLauncher
from bench.workloads.place import RankPlace
from bench.workloads.rank import Standing
from mltcp.ebpf.layout import KernelJob

_LIFE_SIGN_S = 10.0


class Session:
    """The agents of hosts; made of what `connected` yields.

    Args:
        agents: the agents, with the facts of their hosts.
        shared: the directory whose sockets are forwarded to them.
    """

    def __init__(
        self, agents: Mapping[str, tuple[AgentConnection, HostFacts]], shared: SharedDirectory | None = None
    ) -> None:
        self._shared = shared
        self._agents = {name: agent for name, (agent, _) in agents.items()}
        self.facts = tuple(facts for _, facts in agents.values())
        self._ranks = itertools.count()

    def agent(self, host: RemoteHost) -> AgentConnection:
        """The agent of a host."""
        return self._agents[host.name]

    def on_all(self, body: Any) -> dict[str, Any]:
        """The answer of every host to a request, by its name. Raises HostError if one has none."""
        asked = {name: agent.ask(body) for name, agent in self._agents.items()}
        return {name: self._agents[name].answer(future) for name, future in asked.items()}

    @contextmanager
    def lost_hosts_blamed(self) -> Iterator[None]:
        """Report the loss of a host in place of the failures of ranks that follow from it.

        Raises:
            HostError: a rank failed in the context, and a host is lost; the message names it.
        """
        try:
            yield
        except RankError:
            asked = [(agent, agent.ask(ReadClock())) for agent in self._agents.values()]
            for agent, future in asked:
                with suppress(HostError, FutureTimeoutError):
                    future.result(_LIFE_SIGN_S)
                if agent.lost is not None:
                    raise HostError(agent.lost) from None
            raise

    def check_controls(self, names: Sequence[str]) -> None:
        """Raise HostError, which names the host, unless every host has these congestion controls."""
        self.on_all(CheckControls(tuple(names)))

    def check_sockets(self) -> None:
        """Raise HostError, which names the host, unless sshd forwards the shared sockets there."""
        self.on_all(CheckSockets())

    def take_files(self, host: RemoteHost, variables: Iterable[tuple[str, str]]) -> None:
        """Bring the files that these variables of a rank on the host name into the shared directory."""
        if self._shared is None:
            return
        for name in self._shared.files(variables):
            text, file = self.agent(host).request(TakeFile(name)), self._shared.here / name
            file.unlink(missing_ok=True)  # of a contest before
            if text is not None:
                file.write_text(text)

    def compare_clocks(self) -> None:
        """Measure all clock offsets anew, since clocks of different machines drift apart."""
        for agent in self._agents.values():
            agent.compare_clocks()

    def start_load(self) -> None:
        """Measure the load of other programs from now on."""
        self.on_all(StartLoad())

    def loads(self) -> dict[str, float]:
        """The share of each host's processors that other programs have used since."""
        return self.on_all(ReadLoad())

    def place(
        self,
        hosts: Sequence[RemoteHost],
        environment: Callable[[int], tuple[tuple[str, str], ...]],
        slots: Sequence[int] | None = None,
    ) -> tuple[RankPlace, ...]:
        """The places of a job's ranks, which meet at a store of rank 0.

        Args:
            hosts: of the ranks.
            environment: of a rank.
            slots: of the ranks on their hosts, which have GPUs by slot; None: the first ones of each host.
        """
        port = self.agent(hosts[0]).request(FindPort())
        if slots is None:
            slots = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
        return tuple(
            RankPlace(
                None,
                host.interface,
                host.address,
                environment=(*_gpu_variables(host, slots[rank]), *environment(rank)),
                meeting=(hosts[0].address, port),
            )
            for rank, host in enumerate(hosts)
        )

    def launcher(
        self,
        hosts: Sequence[Sequence[RemoteHost]] | Mapping[int, Sequence[RemoteHost]],
        control: str,
        law: Callable[[str], KernelJob],
    ) -> RankLauncher:
        """A launcher of ranks on these hosts, by the number of the job and of the rank.

        Args:
            hosts: of each rank of each job, by the number of the job.
            control: the congestion control of all connections.
            law: the entry in the kernel's map, for the name of a job on a host.
        """

        def launch(
            main: Callable[..., None], job: int, job_name: str, number: int, arguments: tuple[Any, ...]
        ) -> LaunchedRank:
            host = hosts[job][number]
            again = hosts[job][:number].count(host)
            entry = law(f"{job_name}@{host.name}" + (f".{again}" if again else ""))
            work, place = _work_and_place(arguments)
            if self._shared is not None:
                place = replace(place, environment=self._shared.variables(place.environment))
            request = LaunchRank(next(self._ranks), job, job_name, number, work, place, control, entry)
            return LaunchedRank(job, job_name, number, *_twice(self._launched(host, request)))

        return launch

    def start_program(
        self, host: RemoteHost, arguments: Sequence[str], environment: Iterable[tuple[str, str]]
    ) -> RemoteRank:
        """Start ``python -m ARGUMENTS`` on a host."""
        return self._launched(host, StartProgram(next(self._ranks), tuple(arguments), tuple(environment)))

    def _launched(self, host: RemoteHost, request: LaunchRank | StartProgram) -> RemoteRank:
        rank, answered = self.agent(host).launch(request)

        def check(future: Future[Any]) -> None:
            error = future.exception()
            if error is not None:
                rank.lost(str(error))

        answered.add_done_callback(check)
        return rank


def _twice(rank: RemoteRank) -> tuple[RemoteRank, RemoteRank]:
    """A remote rank stands for its process and for its connection."""
    return rank, rank


def _work_and_place(arguments: tuple[Any, ...]) -> tuple[JobSpec | Standing, RankPlace]:
    """The work and the place in the arguments of `rank_main` or of a standing rank; files stay on this machine."""
    first = arguments[0]
    if isinstance(first, Standing):
        return replace(first, store=Path()), first.place
    return first, arguments[2]


def _gpu_variables(host: RemoteHost, slot: int) -> tuple[tuple[str, str], ...]:
    return (("CUDA_VISIBLE_DEVICES", host.gpus[slot]),) if host.gpus else ()
