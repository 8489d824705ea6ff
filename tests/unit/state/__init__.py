"""Tests of state/."""
