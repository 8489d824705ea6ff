"""Judges what can be seen of an app and its cluster from outside, and names what to type.

Pure: infra/doctor asks."""
