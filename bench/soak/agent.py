"""An agent of a job as cheap as can be: attached to the placement service, without iterations to report.

It comes back whenever the service does. A service that does not know the job's token any more is a breach.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from placement.client.agent_stream import AgentStream
from placement.client.client import Client, ServiceError
from placement.service.protocol.connection import VARIABLE

USAGE = "usage: python -m bench.soak.agent BREACHES, in the environment of a rank"

_PAUSE_S = 0.3
_REFUSALS = ("UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND")


def main(breaches: Path) -> int:
    """Stay attached until this process is ended; returns the exit status when the service has let the job go."""
    job, ranks = os.environ["MLTCP_JOB"], int(os.environ["WORLD_SIZE"])
    while True:
        stream = AgentStream(Client(os.environ[VARIABLE]), job, ranks)
        try:
            for _ in stream.decisions():
                pass
        except ServiceError as error:
            if error.code in _REFUSALS:
                with open(breaches, "a") as file:
                    file.write(f"the agent of {job} was refused: {error.code}: {error}\n")
                return 1
        finally:
            stream.close()
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(USAGE)
    sys.exit(main(Path(sys.argv[1])))
