"""Asynchronous SGD with parameter servers: workers that join, leave and die, and servers that lose no update.

`collectives.parameter_server.server.serve` keeps the parameters and the optimizer of a module, or of a part of it;
`collectives.parameter_server.worker.join` makes a process a worker. ``docs/parameter-server.md`` says what is
guaranteed.
"""
