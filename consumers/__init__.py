"""Shells that take records out of Kafka: workers, topic triggers and built-in agents."""
