"""Tests of infra/."""
