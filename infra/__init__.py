"""Adapters and wiring: the only room that touches Kafka, HTTP clients, clocks and processes."""
