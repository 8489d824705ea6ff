"""Ports to a log of any kind; no implementation."""
