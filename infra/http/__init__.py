"""HTTP at both ends: delivery of effects, every process's server, the gateway's client."""
