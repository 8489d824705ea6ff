"""Tests of consumers/."""
