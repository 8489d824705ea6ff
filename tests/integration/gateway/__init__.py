"""The gateway, its client and its events on a real broker."""
