"""Imports of the fork server for jobs that train models, after those of `bench.workloads.preload`."""

import gc
from contextlib import suppress

from mltcp.core.errors import NotAvailableError

gc.unfreeze()
from bench.workloads.models import language  # noqa: E402

with suppress(NotAvailableError):
    language.preload()
gc.collect()
gc.freeze()
