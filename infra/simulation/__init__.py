"""Processes and time of the simulation."""
