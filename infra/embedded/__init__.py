"""The log in one SQLite file or in memory, for one machine; same ports as infra/kafka."""
