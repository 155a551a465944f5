"""Several hosts on one machine, with shaped links, to run distributed jobs on."""

from netlab.lab import INTERFACE, Lab, LabError, bits_per_second
from netlab.launch import ENGINES, JobError, hosts_of, run

__all__ = [
    "ENGINES",
    "INTERFACE",
    "JobError",
    "Lab",
    "LabError",
    "bits_per_second",
    "hosts_of",
    "run",
]
