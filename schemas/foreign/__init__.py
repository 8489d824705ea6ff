"""Records in other formats: CloudEvents, Avro with a registry, unions by name."""
