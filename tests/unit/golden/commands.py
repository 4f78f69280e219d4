"""The commands whose JSON is kept: all simulations of `mltcp-placement`, small enough to run in seconds."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "unit" / "placement" / "data"
TRACES = Path(__file__).parent / "traces"
EXPECTED = Path(__file__).parent / "expected"

_DEADLINES = (
    "drs,norm,edf,fifo,themis-batch,edf-scheme,edf-late-last,edf-late-last-node,edf-late-last-scheme,llf,"
    "edf-efficient,edf-rollout,elastic-edf,elastic-mh,elastic-density,themis-leases,themis,pollux,random"
)
_RESPONSE = (
    "srpt,waterfill,equi,knee,knee+fill,knee+marginal,hell,hell+fill,hell+marginal,moldable-knee,moldable-hell,"
    "hesrpt,node-price,jsq-chunk,jsq-chunk-10"
)
_ROUNDS = (
    "fifo-packed-none,fifo-first-none,las-table-full,tiresias-most-nodes-ratio,srtf-head-packed-none,srsf-first-ratio,"
    "srsf-head-table-full,random-none,random-ratio,random-fallback-none,random-fallback-ratio,greedy,greedy-ratio,"
    "reopt,reopt-2,greedy-look,greedy-look-4,reopt-look-4"
)
_WHOLE_JOBS = "themis,themis+cassini,pollux,pollux+cassini,random,random+cassini,ideal"
_PLACEMENTS = ("random", "first-fit", "list-scheduling", "lwf")
_COMMUNICATION = ("srsf-1", "srsf-2", "ada-srsf")

_SIMULATE = {
    **{
        f"simulate {placement} {communication}": f"simulate --trace {TRACES}/ada-srsf.csv --servers 4 --gpus 4 "
        f"--placement {placement} --communication {communication}"
        for placement in _PLACEMENTS
        for communication in _COMMUNICATION
    },
    "simulate kappa": f"simulate --trace {TRACES}/ada-srsf.csv --kappa 4 --seed 7 --a 0.5 --b 0.9 --eta 0.3",
    "simulate intervals": f"simulate --trace {TRACES}/ada-srsf.csv --intervals 10",
    "simulate published": f"simulate --trace {TRACES}/ada-srsf.csv --model published",
    "simulate defect": f"simulate --trace {TRACES}/ada-srsf.csv --model published --defect",
    "simulate philly": f"simulate --trace {DATA}/philly_cluster_job_log.json",
    "simulate tree": f"simulate --trace {TRACES}/ada-srsf.csv --cluster {TRACES}/tree.json",
}
_COMPARE = {
    "compare fresh": "compare --fresh 2 --scale 10 --jobs 40",
    "compare published": "compare --fresh 2 --scale 10 --jobs 40 --baseline lwf-1+ada-srsf@published --policies "
    "lwf-1+srsf-1@published,lwf-1+ada-srsf@published,lwf-1+ada-srsf@published-defect,lwf-2+ada-srsf-k",
    "compare traces": f"compare --trace {TRACES}/ada-srsf.csv --policies lwf-1+srsf-1,random+ada-srsf,first-fit+srsf-2",
    "compare full length": "compare --fresh 1 --first-seed 3 --jobs 30 --servers 8",
}
_JOBS = {
    "jobs drs": f"jobs --seeds 0:2 --hours 6 --bound --baseline edf --policies {_DEADLINES}",
    "jobs drs half bandwidth": f"jobs --seeds 0:2 --hours 6 --bandwidth 5e9,3e9 --policies {_DEADLINES}",
    "jobs drs restarts": f"jobs --seeds 0:2 --hours 6 --restart-cost 60 --policies {_DEADLINES}",
    "jobs drs fat urgent": "jobs --seeds 3:5 --hours 6 --rate 6 --fat 0.5 --urgent 0.4 --nodes 2 "
    f"--policies {_DEADLINES}",
    "jobs drs trace": f"jobs --trace {ROOT}/docs/traces/live-jobs.csv --policies {_DEADLINES}",
    "jobs drs philly": f"jobs --trace {DATA}/philly_cluster_job_log.json --nodes 8 --gpus 8 --policies drs,norm,edf",
    "jobs response": f"jobs --workload async-sgd --seeds 1:3 --jobs 2500 --policies {_RESPONSE}",
    "jobs response two": "jobs --workload async-sgd --models two --load 0.8 --seeds 1:2 --jobs 2500 "
    f"--policies {_RESPONSE}",
    "jobs response one": "jobs --workload async-sgd --models one --load 0.5 --seeds 1:2 --jobs 2500 --nodes 40 "
    f"--server-node charged --throughput approximate --alpha 0.02 --policies {_RESPONSE}",
    "jobs response gamma": f"jobs --workload async-sgd --seeds 1:2 --jobs 2500 --gamma 0.9 --policies {_RESPONSE}",
    "jobs contention": f"jobs --workload contention --seeds 0:2 --load 0.6 --policies {_ROUNDS}",
    "jobs contention at once": f"jobs --workload contention --seeds 0:1 --mix heavy --policies {_ROUNDS}",
    "jobs contention restarts": "jobs --workload contention --seeds 0:2 --load 0.7 --restart-cost 30 "
    f"--table {ROOT}/docs/tables/cubic --combination product --policies {_ROUNDS}",
    "jobs contention trace": f"jobs --workload contention --trace simulate_trace0 --policies {_ROUNDS}",
    "jobs contention published": "jobs --workload contention --trace simulate_trace0 --published-loop",
}
_OTHERS = {
    "schedule poisson": f"schedule --seeds 0:2 --jobs 12 --schedulers {_WHOLE_JOBS}",
    "schedule dynamic": "schedule --trace dynamic --seeds 0:1 --schedulers themis,themis+cassini,random,ideal",
    "schedule congestion": "schedule --seeds 0:1 --jobs 12 --racks 6 --servers 2 --congestion-loss 0.1 --migration 20 "
    "--schedulers themis,themis+cassini,pollux+cassini,random",
    **{
        f"circle {name}": f"circle {name}"
        for name in (*(f"snapshot{n}" for n in range(1, 6)), "group1", "group4")
    },
    "circle fine": "circle snapshot2 --angles 360 --capacity 40gbit",
    "throughput": f"throughput --profile {TRACES}/parameter-server.json --workers 1:12",
    "evaluate": "evaluate {policy} --seeds 40:42 --jobs 40 --loads 0.6 --rules greedy,greedy-look,reopt",
    "evaluate guided": "evaluate {policy} --seeds 40:42 --jobs 30 --loads 0.5:0.7 --mixes normal,heavy --look-ahead",
}

COMMANDS = {
    **{name: f"{line} --json" for name, line in {**_SIMULATE, **_OTHERS}.items()},
    **{name: f"{line} --processes 1 --json" for name, line in {**_COMPARE, **_JOBS}.items()},
}
"""Command lines by name; ``{policy}`` stands for a checkpoint that was not trained."""
