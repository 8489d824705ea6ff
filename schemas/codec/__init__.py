"""Avro records of Surefoot's own schemas: encoding, decoding, evolution."""
