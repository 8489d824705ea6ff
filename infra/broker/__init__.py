"""A Kafka broker for development and tests: found, downloaded, started, probed."""
