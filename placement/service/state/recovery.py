"""Recovery of the registry from the store when the service starts."""

from __future__ import annotations

from placement.service.state.persistence import saved_jobs, saved_links, saved_servers
from placement.service.state.registry import Registry
from placement.service.state.store import Store


def recovered(store: Store) -> Registry:
    """The registry with every server, link and job that an earlier service committed."""
    registry = Registry()
    registry.add_servers(saved_servers(store))
    registry.add_links(saved_links(store))
    for job, places in saved_jobs(store):
        if job.placed:
            registry.place_again(job, registry.slots(job, places))
        else:
            registry.add_job(job)
    return registry
