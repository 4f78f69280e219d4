"""A training program's report to the test: its losses and its weights, exactly."""

import json
import sys
from pathlib import Path


def report(losses, model, steps):
    """Write the losses, the weights and the number of optimizer steps to the file that the test names."""
    weights = [value for parameter in model.parameters() for value in parameter.detach().flatten().tolist()]
    document = {
        "losses": [float(loss).hex() for loss in losses],
        "weights": [float(value).hex() for value in weights],
        "steps": steps,
    }
    Path(sys.argv[1]).write_text(json.dumps(document))
