"""Starts, closes and probes Kafka's clients, and maps their errors; knows no runs."""

from aiokafka.abc import AbstractTokenProvider

from surefoot.infra.sign_in.tokens import AwsIamToken, TokenFile

# aiokafka takes tokens only from one of its own kind
AbstractTokenProvider.register(TokenFile)
AbstractTokenProvider.register(AwsIamToken)
