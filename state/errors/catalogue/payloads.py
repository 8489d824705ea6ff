"""SF20: payloads and schemas."""

from __future__ import annotations

from surefoot.state.errors.catalogue.page import Page

PAYLOADS_PAGES: tuple[Page, ...] = (
    Page(
        number="SF2001",
        title="Value does not survive storage",
        means="Values are stored as strict JSON, which would lose or change this one. It was "
        "refused before the commit. The message has its path.",
        causes=(
            "NaN, a set, bytes that are no text, an object of a class of your own",
            "a tuple where the type says list, or a number where it says text",
        ),
        mend=(
            "Store what the message proposes, or give the step a type that keeps it.",
            "Then: `surefoot runs retry AGENT RUN_ID`",
        ),
        codes=("unserialisable",),
    ),
    Page(
        number="SF2002",
        title="Payload does not fit the step's type",
        means="JSON from outside, or stored by older code, does not fit the type that the "
        "step (or the wait for a signal) declares. The message has the path.",
        causes=(
            "the sender has another idea of the payload",
            "a field was added without a default, or renamed, under runs on their way",
        ),
        mend=(
            "See what the step takes: `surefoot dev agent.py` prints a start that fits.",
            "Give a new field a default, or map old state: `@agent.upcast(from_version=N)`",
            "Then: `surefoot runs retry AGENT RUN_ID`",
        ),
        codes=("bad_payload",),
    ),
    Page(
        number="SF2003",
        title="Record cannot be decoded",
        means="A record on one of the agent's topics was not written by Surefoot. It is on "
        "surefoot.dead with its bytes; the partition continues.",
        causes=(
            "another program writes to the topic",
            "a newer version of Surefoot wrote it: upgrade every process",
        ),
        mend=(
            "Start runs through the gateway or `surefoot runs start`, not by hand.",
            "Compare versions: `surefoot version`",
        ),
        codes=("undecodable",),
    ),
    Page(
        number="SF2004",
        title="Invalid run id",
        means="Ids are 1 to 256 of A-Z a-z 0-9 . _ : ~ = + - and begin with a letter or "
        "digit. Names from outside become ids: of a delivery, of `key=` of an event, of "
        "an Idempotency-Key.",
        causes=("spaces, slashes or other alphabets in it", "an empty id of an event"),
        mend=(
            "Start it with the id as its key: `curl -H 'Idempotency-Key: ANY' ...`",
            "Replace what is not allowed, or hash it.",
        ),
        codes=("bad_run_id",),
    ),
    Page(
        number="SF2005",
        title="Pool result cannot be read",
        means="A pool's worker returned a step's outcome that this worker cannot decode.",
        causes=("the pool's workers run another version of the agent's file",),
        mend=(
            "Deploy one version to all: `surefoot worker agent.py --pool NAME`",
            "Then: `surefoot runs retry AGENT RUN_ID`",
        ),
        codes=("bad_outcome",),
    ),
    Page(
        number="SF2067",
        title="The registry lacks an event's schema",
        means="The registry answers that it has no schema of that id. The events waited for "
        "SUREFOOT_SCHEMA_WAIT_S and then became dead letters, with their bytes, so that "
        "the partition continues.",
        causes=(
            "the registry was restored from an older state, or a follower of it lags behind",
            "the events were written with another registry than SUREFOOT_REGISTRY_URL names",
            "the subject was deleted for good",
            "what looks like a schema id is none: the record is not Avro",
        ),
        mend=(
            "Have the schema registered again, under its id.",
            "Then put the events back: `surefoot dead redrive agent.py --code schema_missing`",
            "Or let events wait for longer: SUREFOOT_SCHEMA_WAIT_S.",
        ),
        codes=("schema_missing",),
    ),
    Page(
        number="SF2006",
        title="Record too large",
        means="A payload, a result or an effect exceeds the limit of a topic. It was not "
        "written; the run that made it waits for a person.",
        causes=("a document is carried in the payload", "SUREFOOT_RECORD_MAX_BYTES is low"),
        mend=(
            "Store the document elsewhere and hand its key over.",
            (
                "Or raise SUREFOOT_RECORD_MAX_BYTES and the topics' max.message.bytes; "
                "`surefoot topics verify agent.py` says how"
            ),
            "Then: `surefoot runs retry AGENT RUN_ID`",
        ),
        codes=("too_large",),
    ),
    Page(
        number="SF2007",
        title="Inconsistent stored state",
        means="Records of a run are missing or contradict each other. That run is left alone.",
        causes=(
            "what is asked for has expired (the events are kept for 30 days)",
            "somebody deleted records, or changed the state topic's clean-up",
        ),
        mend=(
            "Check the topics: `surefoot topics verify agent.py`",
            "Go back to a version that is left: `surefoot runs versions AGENT RUN_ID`",
        ),
        codes=("state_unreadable",),
    ),
    Page(
        number="SF2008",
        title="Registry schema cannot be used",
        means="The schema is not Avro, or it refers to other schemas. Nothing was changed.",
        causes=("the topic is written as Protobuf or JSON Schema",),
        mend=("See docs/how-to/kafka-events.md for what can be read.",),
        codes=("no_numbers", "not_avro", "references"),
    ),
    Page(
        number="SF2009",
        title="The registry rejects the schema",
        means="The schema is not compatible with earlier versions at the registry's "
        "compatibility level. Nothing was registered.",
        causes=("a field without a default was added or left out", "a type was changed"),
        mend=(
            "See what does not fit: `surefoot schemas check --registry`",
            "Give new fields a default, and leave old ones in.",
        ),
        codes=("incompatible",),
    ),
    Page(
        number="SF2090",
        title="No key for an encrypted payload",
        means="A payload is encrypted with a key that this process does not have. A worker, relay "
        "or trigger ends, and commits nothing past it; a command that would have been made of the "
        "payload was not written.",
        causes=(
            "SUREFOOT_ENCRYPTION is not set in this shell or container",
            "a new key encrypts before every process has the file with it",
            "an old key was taken out of the file while records still need it",
        ),
        mend=(
            "Set `SUREFOOT_ENCRYPTION` as the other processes have it.",
            "See which keys the file has: `surefoot keys list keys.json`",
            "To rotate, see docs/how-to/encryption.md.",
        ),
    ),
)
