"""Settings of every test: signals, and the profiles of Hypothesis (`--hypothesis-profile NAME`)."""

import signal

from hypothesis import HealthCheck, settings

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would every program they test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes depends on what else the machine does, and the first one may have to be compiled.
settings.register_profile("complete", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", settings.get_profile("complete"), max_examples=20)
settings.load_profile("complete")
