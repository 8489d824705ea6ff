"""An agent's log on Kafka; others see the ports of log/ only."""
