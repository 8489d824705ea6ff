"""The demo: real deliveries, real kills, and an auditor that takes nobody's word for it."""
