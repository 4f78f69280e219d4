"""The simulator that was published with the Ada-SRSF paper: its rules to the last rounding, written anew.

The original steps through every millisecond; here, steps in which nothing can happen are skipped, which changes no
result. Its peculiarities are kept, as its results depend on them:

* A job behind one that was just placed, or that just left, is passed over until the next step.
* GPUs are shared while their memory lasts. LWF assumes communication of 7.8125 ms/MB; it costs 0.856.
* AdaDUAL considers only a transfer on the first occupied server, and its acceptance is b / (2 (b + eta)).
* The defect: its query of a running transfer's remainder also advances that transfer, at no cost of time. Every
  waiting job queries in every millisecond, so the more jobs wait, the faster transfers run.
"""
