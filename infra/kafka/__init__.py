"""The Kafka adapter of an agent's log; other rooms see only the ports in log/."""
