"""``python -m tests.trainers.observed DIRECTORY MODULE [ARGUMENT...]``: runs a program, and tells what it learned.

Random numbers are the same on every run, also of programs that draw others each time. For every rank a file in the
directory has the number of optimizer steps, and a digest of all parameters after each.
"""

import atexit
import hashlib
import json
import os
import random
import runpy
import sys
from pathlib import Path

import numpy
import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook

_numpy_default_rng = numpy.random.default_rng
_digest = hashlib.sha256()
_steps = 0


def _after_a_step(optimizer, arguments, options):
    global _steps
    _steps += 1
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            _digest.update(local.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def _tell(directory):
    file = Path(directory) / f"rank-{os.environ.get('RANK', '0')}.json"
    file.write_text(json.dumps({"steps": _steps, "parameters": _digest.hexdigest()}))


def _default_rng(seed=0):
    return _numpy_default_rng(0 if seed is None else seed)


if __name__ == "__main__":
    _, directory, module, *arguments = sys.argv
    register_optimizer_step_post_hook(_after_a_step)
    atexit.register(_tell, directory)
    random.seed(0)
    torch.manual_seed(0)
    numpy.random.default_rng = _default_rng
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
