"""Shells that put records into Kafka: gateway, webhooks, event sources, commands."""
