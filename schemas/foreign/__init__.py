"""Records in other people's formats: CloudEvents, Avro with a registry, unions by name."""
