"""What an author declares: agents, triggers, retries, flow control; nothing here runs a step."""
