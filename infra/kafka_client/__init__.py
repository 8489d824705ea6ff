"""Kafka's clients: made, closed, probed, their errors told; knows no runs."""
