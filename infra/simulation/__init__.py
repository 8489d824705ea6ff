"""The simulation's processes and time."""
