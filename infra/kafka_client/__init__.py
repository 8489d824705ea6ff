"""Starts, closes and probes Kafka's clients, and maps their errors; knows no runs."""
