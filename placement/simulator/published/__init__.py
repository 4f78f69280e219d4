"""The simulator that was published with the Ada-SRSF paper: its rules to the last rounding, written anew.

It steps through every millisecond; here, steps in which nothing can happen are left out, which changes no number. What
is odd about it is kept, as its numbers depend on it:

* A job behind one that was just placed, or that just left, is passed over until the next step.
* GPUs are shared while their memory lasts. LWF reckons with communication of 7.8125 ms/MB, it costs 0.856.
* AdaDUAL asks only about a transfer on the first occupied server, and its acceptance is b / (2 (b + eta)).
* The defect: its question for what a running transfer has left to send also advances that transfer, at no cost of
  time. Every waiting job asks in every millisecond, so transfers run the faster, the more jobs wait for them.
"""
