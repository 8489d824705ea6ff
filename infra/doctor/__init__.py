"""What `surefoot doctor` asks the log and its brokers; state/diagnosis judges the answers."""
