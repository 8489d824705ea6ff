"""What compressing a transaction's batches costs a worker's processor, and what it saves.

    python -m benchmarks.compression

A batch is of one partition: so many checkpoints whose payload is 1 kB of English and JSON, taken
from the documents of this repository, as an agent's conversation is. No broker is needed.
"""

from __future__ import annotations

import json
import time

from aiokafka import TopicPartition

from benchmarks.site import ROOT
from surefoot.infra.kafka_client.batches import CODECS
from surefoot.infra.kafka_client.transactions import Batch, ProducerEpoch, record_batch
from surefoot.state.ports.log import ProducerRecord

_PAYLOAD_BYTES = 1_000
_RECORDS = (1, 10, 100)
_ENOUGH_S = 0.5


def main() -> None:
    text = " ".join(path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    print(f"{'codec':8}{'records':>8}{'bytes each':>12}{'of none':>9}{'µs each':>9}")
    for count in _RECORDS:
        batch = _batch(text, count)
        plain = len(record_batch(batch, ProducerEpoch(1, 1), 0))
        for codec, name in enumerate(CODECS):
            rounds, begun_s = 0, time.process_time()
            while (used_s := time.process_time() - begun_s) < _ENOUGH_S:
                packed = record_batch(batch, ProducerEpoch(1, 1), codec)
                rounds += 1
            size, each_us = len(packed) / count, used_s * 1e6 / rounds / count
            print(f"{name:8}{count:8}{size:12.0f}{len(packed) / plain:9.2f}{each_us:9.1f}")


def _batch(text: str, count: int) -> Batch:
    def record(number: int) -> ProducerRecord:
        said = text[number * _PAYLOAD_BYTES :][:_PAYLOAD_BYTES]
        value = json.dumps({"role": "assistant", "content": said}).encode()
        return ProducerRecord("app.agent.state", 0, b"run-%d" % number, value)

    return Batch(TopicPartition("app.agent.state", 0), [record(n) for n in range(count)], 0, 1)


if __name__ == "__main__":
    main()
