"""Agents that the system runs itself: effect delivery, schedules, outgoing webhooks."""
