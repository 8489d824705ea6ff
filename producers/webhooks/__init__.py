"""Incoming webhooks: verification, mapping to a run, record of the delivery."""
