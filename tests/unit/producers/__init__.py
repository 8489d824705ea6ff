"""Tests of producers/."""
