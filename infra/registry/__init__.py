"""Avro schemas from Confluent's registry and AWS Glue."""
