"""Published traces of real clusters, a module a format; `placement.traces.read` tells them apart."""
