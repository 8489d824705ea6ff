"""Tests of one module each, in the rooms of the product."""
