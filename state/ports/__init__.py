"""What the engine needs from the outside world, as Protocols; no implementation."""
