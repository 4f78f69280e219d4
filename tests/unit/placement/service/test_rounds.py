"""The service in rounds: a table of models, reported iterations, a policy that fails, a shadow; with real processes."""

import threading

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from placement.cli.main import main
from placement.client.client import Client, ServiceError
from placement.engines.hosts import Host
from placement.engines.local import LocalEngine
from placement.model.throughput_table import Layout, published_table, read_table
from placement.service.context import ServiceRules
from placement.service.protocol import placement_pb2 as pb
from tests.unit.placement.service.deciding.failing_policies import HERE, OPENED
from tests.unit.placement.service.serving import eventually, placed, serving

pytestmark = pytest.mark.slow

SERVERS = tuple(pb.Server(name=f"h{each}", cpu_slots=4, nic_bps=10**9, switch="r") for each in range(4))
ROUND_S = 0.25
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
COMMAND = ("sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done")


def rules(policy, **more):
    return ServiceRules(policy, grace_s=30, restart_cost_s=0, table="published", round_s=ROUND_S, **more)


def started(tmp_path, chosen, servers=SERVERS):
    hosts = tuple(Host(server.name, "127.0.0.1", "lo", slots=server.cpu_slots) for server in servers)
    return serving(tmp_path, servers=servers, rules=chosen, engine=LocalEngine(hosts, tmp_path / "logs"))


def training(name, model="FSDP", slots=2, **fields):
    fields = {"iterations": 10**9, "elastic": True, "command": COMMAND, **fields}
    return pb.Job(id=name, cpu_slots=slots, model=model, **fields)


def test_reported_iterations_change_the_table_which_survives_a_restart_and_can_be_written(
    tmp_path, monkeypatch
):
    """Two jobs of two slots on four slots a server share two servers under first fit."""
    fast, slow = Layout("GraphSage", 2, 2), Layout("FSDP", 2, 2)
    table = published_table()
    with started(tmp_path, rules("fifo-first-none")) as address, Client(address) as client:
        client.submit(training("a", "GraphSage", iteration_samples=table.throughput(fast) / 10))
        client.submit(training("b", "FSDP"))
        there = {tuple(place.server for place in placed(client, name).places) for name in "ab"}
        assert there == {("h0", "h1")}
        now_ns = client.clock_ns()
        client.report_drift("b", 0, now_ns - 10**9, 10**8)
        for number in range(12):  # an iteration takes 0.1 s alone, and 0.2 s here: the ratio is 0.5
            client.report_drift("a", number, now_ns + number, 2 * 10**8)

        def measured():
            found = [cell for cell in client.ratios().ratios if cell.observations]
            return found[0] if found else None

        cell = eventually(measured)
        given = table.ratio(fast, slow)
        assert (cell.target.model, cell.other.model) == ("GraphSage", "FSDP")
        assert cell.ratio == pytest.approx(given + (0.5 - given) / 4)
        assert client.status().decisions.table.observed >= 1
    with started(tmp_path, rules("fifo-first-none")) as address, Client(address) as client:
        assert measured().ratio == pytest.approx(cell.ratio)
        monkeypatch.setenv("MLTCP_PLACEMENT", address)
        assert main(["ratios", "-o", str(tmp_path / "table")]) == 0
        written = read_table(tmp_path / "table")
        assert written.ratio(fast, slow) == pytest.approx(cell.ratio)
        assert written.ratio(slow, fast) == table.ratio(slow, fast)
        assert written.samples_per_s == table.samples_per_s


def test_where_the_policy_hangs_the_rule_decides_and_a_shadow_is_compared(tmp_path, monkeypatch, capsys):
    chosen = rules(f"{HERE}hanging", fallback="greedy", decision_limit_s=0.2, shadow=f"{HERE}idle")
    with started(tmp_path, chosen) as address, Client(address) as client:
        client.submit(training("a"))
        status = placed(client, "a")
        assert (status.policy, len(status.places)) == ("greedy", 2)
        assert "greedy, since import:" in client.explain("a").summary

        def timed_out(decisions):
            return any(each.reason == "time-out" and each.times for each in decisions.fallbacks)

        # The shadow may be ready, and differ, before the policy that hangs has been started.
        decisions = eventually(
            lambda: (found := client.status().decisions).shadow.differed and timed_out(found) and found
        )
        assert (
            "expected a decision within 0.2 s" in decisions.last_fallback
            or "started" in decisions.last_fallback
        )
        assert "idle would have given it nothing" in client.explain("a").summary
        monkeypatch.setenv("MLTCP_PLACEMENT", address)
        assert main(["status"]) == 0
        shown = capsys.readouterr().out
        assert "fallback greedy: " in shown
        assert "shadow import:" in shown


def test_a_missing_checkpoint_is_counted_and_the_rule_decides(tmp_path):
    chosen = rules("learned:/no/such/file", fallback="greedy")
    with started(tmp_path, chosen) as address, Client(address) as client:
        client.submit(training("a"))
        assert placed(client, "a").policy == "greedy"
        (count,) = client.status().decisions.fallbacks
        assert (count.reason, count.times >= 1) == ("checkpoint", True)


@pytest.mark.parametrize("fallback", ["", "greedy"])
def test_the_shipped_policy_places_jobs_and_explain_says_what_it_saw(tmp_path, fallback):
    more = {"fallback": fallback, "decision_limit_s": 20.0} if fallback else {}
    with started(tmp_path, rules("learned-look", **more)) as address, Client(address) as client:
        client.submit(training("a"))
        status = placed(client, "a")
        assert (status.policy, len(status.places)) == ("learned-look", 2)
        assert "learned-look: placed on 2 slots" in client.explain("a").summary
        assert "started at a ratio of 1.00" in client.explain("a").summary


def test_a_service_answers_while_its_policy_gets_ready_and_is_ready_then(tmp_path):
    def serve():
        with started(tmp_path, rules(f"{HERE}waiting")):
            ready.set()
            over.wait()

    ready, over = threading.Event(), threading.Event()
    OPENED.clear()
    service = threading.Thread(target=serve)
    service.start()
    try:
        eventually((tmp_path / "s").exists)
        with Client(f"unix:{tmp_path}/s") as client:
            health = health_pb2_grpc.HealthStub(client._channel)
            client.submit(training("a"))
            assert client.explain("a").summary == "waits: answering is being loaded and compiled"
            assert health.Check(health_pb2.HealthCheckRequest()).status == NOT_SERVING
            assert not ready.is_set()
            OPENED.set()
            eventually(ready.is_set)
            eventually(lambda: health.Check(health_pb2.HealthCheckRequest()).status != NOT_SERVING)
            eventually(lambda: "answering gives 0 of 16 slots" in client.explain("a").summary)
    finally:
        OPENED.set()
        over.set()
        service.join()


def test_a_job_that_fits_nowhere_while_servers_are_drained_keeps_no_other_from_being_placed(tmp_path):
    servers = tuple(
        pb.Server(name=each.name, cpu_slots=4 if each.name > "h1" else 2, nic_bps=10**9, switch="r")
        for each in SERVERS
    )
    with started(tmp_path, rules("greedy"), servers) as address, Client(address) as client:
        client.change_servers(["h2", "h3"], pb.DRAINING)
        client.submit(training("a", slots=8))
        client.submit(training("b"))
        assert {place.server for place in placed(client, "b").places} == {"h0", "h1"}
        client.change_servers(["h2", "h3"], pb.IN_USE)
        assert {place.server for place in placed(client, "a").places} == {"h2", "h3"}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"model": "GPT"}, "job.model: expected one of GraphSage, "),
        ({"model": ""}, "job.model: expected one of "),
        ({"slots": 3}, "job.cpu_slots: expected 2, 4, 8, which FSDP has rows for, got 3"),
        ({"iteration_samples": -1}, "job.iteration_samples: expected 0 to 1e12, got -1"),
    ],
)
def test_a_job_that_the_table_does_not_know_is_refused(tmp_path, fields, text):
    with started(tmp_path, rules("greedy")) as address, Client(address) as client:
        with pytest.raises(ServiceError) as error:
            client.submit(training("a", **fields))
        assert text.split("GraphSage")[0] in str(error.value)


def a_table(folder, ratio="0.5", hole=False):
    folder.mkdir()
    (folder / "isolated_throughput.csv").write_text("model,gpus,nodes,samples_per_s\nm,2,2,10\nn,2,2,10\n")
    sides = [(one, other) for one in "mn" for other in "mn"][: 3 if hole else 4]
    names = [f"{side}_{name}" for side in ("target", "other") for name in ("model", "gpus", "nodes")]
    rows = [f"{one},2,2,{other},2,2,{ratio}" for one, other in sides]
    text = "\n".join([",".join([*names, "shared_over_isolated_ratio"]), *rows])
    (folder / "shared_throughput_ratio_long.csv").write_text(text + "\n")
    return folder


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--policy", "greedy", "--table", "HOLE"],
            "ratio of n on 2 GPUs of 2 nodes beside n on 2 GPUs of 2 nodes",
        ),
        (["--policy", "greedy", "--table", "ABOVE"], "more than 0 up to 1"),
        (["--policy", "greedy", "--table", "BELOW"], "more than 0 up to 1"),
        (["--policy", "learned:/no/such/file", "--table", "published"], "--policy: /no/such/file"),
        (
            ["--policy", "learned:DAMAGED", "--table", "published"],
            "expected a checkpoint of a learned policy",
        ),
        (["--policy", "rl-base:/no/such/file"], "--policy: expected --table with rl-base:"),
        (["--policy", "greedy", "--shadow", "learned:/no", "--table", "published"], "--shadow: /no"),
        (
            ["--policy", "greedy", "--fallback", "lwf-1"],
            "--fallback: expected a policy that decides for all jobs",
        ),
        (
            ["--policy", "lwf-1", "--fallback", "greedy"],
            "--fallback: expected a --policy that decides for all",
        ),
        (["--policy", "elastic-mh", "--fallback", "greedy"], "--round: expected a time with --fallback"),
        (["--policy", "greedy", "--round", "0"], "--round: "),
        (
            ["--policy", "greedy", "--decision-limit", "1s"],
            "--decision-limit: expected --fallback or --shadow",
        ),
    ],
)
def test_bad_usage_of_serve_ends_with_status_2(tmp_path, capsys, arguments, text):
    (tmp_path / "damaged").write_bytes(b"PK not an archive")
    named = {
        "HOLE": a_table(tmp_path / "hole", hole=True),
        "ABOVE": a_table(tmp_path / "above", "1.2"),
        "BELOW": a_table(tmp_path / "below", "-0.1"),
        "learned:DAMAGED": f"learned:{tmp_path / 'damaged'}",
    }
    given = [str(named.get(each, each)) for each in arguments]
    state = ["--state", str(tmp_path / "state.db"), "--address", f"unix:{tmp_path}/s"]
    assert main(["serve", *state, "--engine", "local", *given]) == 2
    said = capsys.readouterr().err
    assert text in said
    assert said.count("\n") == 1
