"""Owns partitions of an agent: takes them over, decides their inputs, commits; runs no step."""
