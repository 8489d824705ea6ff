"""Shells that put records into Kafka: the gateway, webhooks, the client."""
