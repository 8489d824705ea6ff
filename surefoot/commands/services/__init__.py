"""The parts of a system that run until they are told to stop."""
