"""Runs, histories and deliveries as the outside sees them: pure projections; decides nothing."""
