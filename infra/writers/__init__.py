"""Writes commands to the log from outside workers."""
