"""One-line mutations of the engine, each of which the simulation has to find within 1,000 seeds.

A protection that can be taken out without anybody noticing is either not needed or not tested.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """`old` stands once in the file; with `new` in its place something that is promised breaks."""

    name: str
    file: str
    old: str
    new: str
    #: kinds of faults that may strike; all, if it does not say
    only: str = ""
    #: a seed that finds it; another one of the first 1,000 will do, and takes longer
    seed: int


MUTATIONS = (
    Mutation(
        name="R1: read from the offsets of before the takeover",
        file="consumers/partition/owner.py",
        old="self._log.resume(self.partition, starts)",
        new="self._log.resume(self.partition)",
        seed=2,
    ),
    Mutation(
        name="R2: EndTxn is sent again in an epoch of many transactions",
        file="infra/kafka/txn.py",
        old="self._by = await self._sent_again(client, lambda: client.end(by, commit=True))",
        new="self._by = await self._insist(lambda: client.end(by, commit=True))",
        seed=469,
    ),
    Mutation(
        name="R2: TxnOffsetCommit is sent again in an epoch of many transactions",
        file="infra/kafka/txn.py",
        old="await self._sent_again(client, lambda: client.commit_offsets(by, member, offsets))",
        new="await self._insist(lambda: client.commit_offsets(by, member, offsets))",
        seed=13,
    ),
    Mutation(
        name="R2: OffsetCommit is sent again in its generation",
        file="infra/kafka/txn.py",
        old="if answered and not isinstance(error, RequestTimedOutError):",
        new="if True:",
        seed=6,
    ),
    Mutation(
        name="R3: inputs are read uncommitted",
        file="infra/kafka/log.py",
        old="""                group_instance_id=self._instance,
                isolation_level="read_committed",""",
        new="""                group_instance_id=self._instance,
                isolation_level="read_uncommitted",""",
        seed=0,
    ),
    Mutation(
        name="R3: state is restored uncommitted",
        file="infra/kafka/log.py",
        old="""isolation_level="read_committed",
                    enable_auto_commit=False,
                    auto_offset_reset="earliest",""",
        new="""isolation_level="read_uncommitted",
                    enable_auto_commit=False,
                    auto_offset_reset="earliest",""",
        seed=3,
    ),
    Mutation(
        name="R1: a restore ends with its first poll",
        file="infra/kafka/log.py",
        old="if reached >= target:",
        new="if True:",
        seed=43,
    ),
    Mutation(
        name="R1: a restore ends at the last stable offset",
        file="infra/kafka/log.py",
        old="if reached >= target:",
        new="if reached >= (consumer.last_stable_offset(tp) or 0):",
        seed=115,
    ),
    Mutation(
        name="R1: offsets are read that may change",
        file="infra/kafka/shared.py",
        old="found = await producer.committed(group, places, stable=True)",
        new="found = await producer.committed(group, places, stable=False)",
        seed=65,
        only="slow net,spare,drain,markers,slow,hang",
    ),
    Mutation(
        name="R4: offsets are committed without the member's generation",
        file="infra/kafka/log.py",
        old="self._shared.admit(member, now, kept)",
        new="self._shared.admit(Membership(self._topics.group), now, kept)",
        seed=3,
    ),
    Mutation(
        name="R4: what an owner of before has decided is committed by the next",
        file="infra/kafka/shared.py",
        old="return partition in self._partitions and self._holdings.get(partition) is holding",
        new="return partition in self._partitions",
        seed=36,
    ),
    Mutation(
        name="R4: a partition is committed for that has gone to another worker",
        file="infra/kafka/shared.py",
        old="return partition in self._partitions and self._holdings.get(partition) is holding",
        new="return True",
        seed=36,
    ),
    Mutation(
        name="R4: a taking survives another owner in between",
        file="infra/kafka/shared.py",
        old="if holding.partition not in kept:",
        new="if holding.partition not in partitions:",
        seed=36,
    ),
    Mutation(
        name="R4: a partition counts as kept whoever had it in between",
        file="infra/kafka/log.py",
        old="kept = now & self._mine if member.follows(former) else frozenset()",
        new="kept = now & self._mine",
        seed=3,
    ),
    Mutation(
        name="R4: a process of the same name counts as the same member",
        file="infra/kafka_client/transactions.py",
        old="(self.member_id, self.generation) == (former.member_id, former.generation + 1)",
        new="self.generation == former.generation + 1",
        only="twin,freeze,spare",
        seed=188,
    ),
    Mutation(
        name="a partition's offsets are left out of the transaction",
        file="infra/kafka/shared.py",
        old="for share in shares for place, at in share.offsets.items()}",
        new="for share in shares[:1] for place, at in share.offsets.items()}",
        seed=36,
    ),
    Mutation(
        name="a transaction is committed without the batches that were not written",
        file="infra/kafka/txn.py",
        old="                if errors:\n                    raise",
        new="                if False:\n                    raise",
        seed=15,
    ),
    Mutation(
        name="offsets go on past what is still in work",
        file="state/records/offset_tracker.py",
        old="return min((self._in_work - also_done) | {self.next})",
        new="return self.next",
        seed=3,
    ),
    Mutation(
        name="offsets are not part of the transaction",
        file="infra/kafka/shared.py",
        old="written = iter(await producer.transact(records, offsets, member))",
        new="written = iter(await producer.transact(records, {}, member))",
        seed=0,
    ),
    Mutation(
        name="a commit of unknown outcome counts as made",
        file="consumers/partition/committer.py",
        old="            if not await self._settle(batch, txn):\n                return [], []\n",
        new="            await self._settle(batch, txn)\n",
        seed=9,
    ),
    Mutation(
        name="a commit of unknown outcome counts as not made",
        file="consumers/partition/committer.py",
        old="        if txn not in seen:\n",
        new="        if True:\n",
        seed=9,
    ),
    Mutation(
        name="an action is begun before its intent is recorded",
        file="state/steps/journal.py",
        old='            await self._act(slot, kind="intent", digest=mark, value=b"null")\n',
        new="            pass\n",
        seed=13,
    ),
    Mutation(
        name="steps, calls and actions are begun without a lease",
        file="state/steps/journal.py",
        old="    if engine.lease_left_s() <= 0:\n        raise OwnershipLost\n",
        new="",
        seed=892,
        only="freeze,spare,sink,slow,repeat,crash",
    ),
    Mutation(
        name="a former owner is not waited for",
        file="state/steps/journal.py",
        old="            await self._engine.alone()  # a former owner may be about to do it\n",
        new="",
        seed=52,
        only="twin,freeze,spare,drain,crash",
    ),
    Mutation(
        name="the journal of another step counts",
        file="state/records/run_store.py",
        old="(entry.kind in _OF_A_STEP and (entry.seq, entry.epoch) == (run.seq, run.epoch))",
        new="entry.kind in _OF_A_STEP",
        seed=0,
    ),
    Mutation(
        name="timers are early",
        file="consumers/partition/timers.py",
        old="        while self._heap and self._heap[0][0] <= now_ms:",
        new="        while self._heap and self._heap[0][0] <= now_ms + 1_000:",
        seed=3,
    ),
    Mutation(
        name="an answer of 500 is taken for done",
        file="consumers/builtin/outbox.py",
        old="if 200 <= status < 300:",
        new="if 200 <= status < 600:",
        seed=3,
    ),
    Mutation(
        name="what was answered above the offsets is not noted",
        file="consumers/partition/transaction.py",
        old="return {(kind, o) for kind, o in answered | new if o >= offsets[kind]}",
        new="return set()",
        seed=18,
    ),
    Mutation(
        name="the probe's answer is not listened to",
        file="state/steps/journal.py",
        old="if told is not None and told is not False:",
        new="if False:",
        seed=2,
    ),
    Mutation(
        name="a call that is recorded is made again",
        # Where owners may be thrown out without knowing it, an old one makes calls again too.
        only="crash,spare,compact,slow,fail,sink,repeat",
        file="state/steps/journal.py",
        old='if entry is not None and entry.kind != "reserved":',
        new="if False:",
        seed=38,
    ),
    Mutation(
        name="another key for each attempt of an effect",
        file="state/steps/context.py",
        old="                index,\n                emit=self.emit,",
        new="                index + self.attempt,\n                emit=self.emit,",
        seed=12,
    ),
    Mutation(
        name="timers are not set again at a takeover",
        file="consumers/partition/takeover.py",
        old="            self._timers.arm(run)\n            in_lanes.append(run)",
        new="            in_lanes.append(run)",
        seed=0,
    ),
    Mutation(
        name="a command that was answered is answered again",
        file="consumers/partition/committer.py",
        old="return offset < self._answered_below.get(kind, 0) or source in self.answered",
        new="return False",
        seed=18,
    ),
    Mutation(
        name="a finished run is not remembered",
        file="consumers/partition/inputs.py",
        old="told = known or store.receipts.get(run_id)",
        new="told = known",
        seed=14,
        only="crash,repeat,drain,compact",
    ),
)
