"""Queue messages and file notices as deliveries; infra polls for them."""
