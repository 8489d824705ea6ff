"""Writes commands to the log from outside of workers."""
