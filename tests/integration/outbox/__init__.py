"""Effects and outgoing webhooks."""
