"""Tests of surefoot/, the front door."""
