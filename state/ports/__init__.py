"""What the engine needs of the outside world, as Protocols; no implementation."""
