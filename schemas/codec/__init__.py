"""Avro records of Surefoot's own schemas: encode, decode, evolve."""
