"""The log in one SQLite file or in memory, for one machine; the same ports as infra/kafka."""
