"""Schedulers that choose which jobs to give up, so that as many others as possible meet their deadlines."""
