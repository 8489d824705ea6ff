"""HTTP, both ends: delivery of effects, the server of every process, the gateway's client."""
