"""Runs a program of this folder, and asks its last rank to stop in its n-th optimizer step: PROGRAM N ARGUMENTS."""

import os
import runpy
import signal
import sys

from torch.optim.optimizer import register_optimizer_step_post_hook

program, stop_at = sys.argv[1], int(sys.argv[2])
sys.argv = sys.argv[2:]
steps = 0


def _count(*_):
    global steps
    steps += 1
    if steps == stop_at and os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
        os.kill(os.getpid(), signal.SIGTERM)


register_optimizer_step_post_hook(_count)
runpy.run_module(f"tests.trainers.programs.{program}", run_name="__main__")
