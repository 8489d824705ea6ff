"""Runs a whole stack of processes on one machine."""
