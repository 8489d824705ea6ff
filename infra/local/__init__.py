"""A whole stack of processes on one machine, and the receiver that stands for the outside world."""
