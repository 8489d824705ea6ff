"""Messages of queues and file notices as deliveries; polling them is infra's."""
