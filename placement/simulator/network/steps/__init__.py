"""The step mode: windows and rates, queues and marks, in steps of microseconds.

`records` has the arrays, `build` fills them, `iterations` says what follows when something ends, `loop` has flows and
links.
"""
