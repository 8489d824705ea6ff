"""Incoming webhooks: verification, mapping to runs, record of deliveries."""
