"""Elastic jobs of Horovod, with and without faults: results, laws and the time of a recovery."""
