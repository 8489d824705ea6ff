"""Built-in agents: effect delivery, schedules, outgoing webhooks."""
