"""The faults: a proxy between clients and brokers, network cuts, rules taken out."""
