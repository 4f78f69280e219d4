"""Asynchronous SGD with parameter servers, over the sends and receives of torch.distributed."""
