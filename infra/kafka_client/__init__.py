"""Starts, closes and probes Kafka's clients, and maps their errors; knows no runs."""

from aiokafka.abc import AbstractTokenProvider

from surefoot.infra.runtime.settings import TokenFile

# aiokafka takes tokens only from one of its own kind
AbstractTokenProvider.register(TokenFile)
