"""Agents to try things with; the demo runs the first one."""
