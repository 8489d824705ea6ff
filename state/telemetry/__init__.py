"""Names of metrics, spans and log fields; exporters live in infra."""
