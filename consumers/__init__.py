"""Shells that take records out of Kafka: the worker and the relay."""
