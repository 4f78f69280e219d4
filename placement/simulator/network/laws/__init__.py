"""A model of one link and a few jobs, window by window, with the laws as they are in the kernel.

`run.simulate` takes a link, jobs and their laws, and returns when each iteration began and ended; `holding` has the
closed form for two jobs whose periods differ. The compiled part is imported by the first simulation. docs/theory.md
has the maps that were drawn with it.
"""
