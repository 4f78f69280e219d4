"""Event simulation of workers around parameter servers, against which the queueing model is held."""
