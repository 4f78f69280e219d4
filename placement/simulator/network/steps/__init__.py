"""The step mode: windows and rates, queues and marks, in steps of a few microseconds.

`records` has the arrays, `build` fills them, `iterations` has what jobs do when something ends, `links` the queues,
`loop` the time. docs/network-simulator.md has the equations.
"""
