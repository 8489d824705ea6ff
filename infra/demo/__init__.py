"""The demo: real deliveries, real kills, and an auditor that checks the topics independently."""
