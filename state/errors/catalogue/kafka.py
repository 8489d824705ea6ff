"""SF30, SF31: Kafka and topics, the embedded log."""

from __future__ import annotations

from surefoot.state.errors.catalogue.page import Page

KAFKA_PAGES: tuple[Page, ...] = (
    Page(
        number="SF3001",
        title="Kafka cannot be reached",
        means="No broker answers at SUREFOOT_BOOTSTRAP_SERVERS. Nothing was written; workers "
        "retry for as long as they run.",
        causes=(
            "the broker is not running, or not yet",
            "the address or port is wrong, or is another one inside of a container",
            "the cluster wants TLS or SASL, and the settings say otherwise",
        ),
        mend=(
            "See what is set: `echo $SUREFOOT_BOOTSTRAP_SERVERS`",
            "Have a broker for trying things: `surefoot broker`",
            "Check SUREFOOT_SECURITY_PROTOCOL and the SASL settings in docs/operations.md.",
        ),
    ),
    Page(
        number="SF3002",
        title="Kafka did not answer in time",
        means="The request may or may not have succeeded. Repeating it with the same id is safe.",
        causes=("a broker is restarting or overloaded", "the network between is slow or cut"),
        mend=(
            "Repeat the command; with the id that it printed, if it did.",
            "Look whether it was done: `surefoot runs show AGENT RUN_ID`",
        ),
    ),
    Page(
        number="SF3003",
        title="No broker can be started here",
        means="`dev` and `demo` start a broker in Docker or on Java, and this machine has neither.",
        causes=("Docker does not run", "no Java 17, or no Maven to fetch Kafka with"),
        mend=(
            "Do without Kafka: `SUREFOOT_LOG=sqlite:///runs.db surefoot dev agent.py`",
            "Start Docker, or name a broker: `export SUREFOOT_BOOTSTRAP_SERVERS=host:9092`",
        ),
    ),
    Page(
        number="SF3004",
        title="Topic does not exist",
        means="The agent's topics were never created on this cluster, or the agent's name has "
        "changed.",
        causes=(
            "a mistyped agent's name, also in Call or Handoff",
            "another SUREFOOT_APP or another cluster than the workers use",
            "topics were not created before the first start",
        ),
        mend=(
            "Create them: `surefoot topics apply agent.py`",
            "A run that waits for it: `surefoot runs retry AGENT RUN_ID`",
        ),
        codes=("no_topic",),
    ),
    Page(
        number="SF3005",
        title="Topic has the wrong configuration",
        means="Its partition count, cleanup policy or limits are not what runs need. Surefoot "
        "does not alter it unasked; each line of the message has the command.",
        causes=(
            "the topic was created by hand, or by a broker that creates what is asked for",
            "SUREFOOT_PARTITIONS was changed: the count is for ever",
            "it is there, and this principal may not see it: Kafka lists what it has a right to",
        ),
        mend=(
            "See every fault with its fix: `surefoot topics verify agent.py`",
            "Set SUREFOOT_PARTITIONS back to what the topics have.",
        ),
    ),
    Page(
        number="SF3006",
        title="Topic cannot be created",
        means="The broker refused; the message has its reason.",
        causes=(
            "this user may not create topics",
            "more replicas are asked for than there are brokers",
        ),
        mend=(
            "With one broker: `export SUREFOOT_REPLICATION_FACTOR=1`",
            "Have the topics created by who may: `surefoot topics apply agent.py`",
        ),
    ),
    Page(
        number="SF3007",
        title="An open transaction blocks readers",
        means="Readers of a partition wait for a transaction that nobody has ended. It ends "
        "at its timeout.",
        causes=("a producer was killed in the middle of one, this or another program's",),
        mend=("Wait a minute; find who holds it: `kafka-transactions.sh find-hanging --help`",),
    ),
    Page(
        number="SF3008",
        title="New topics have no leader yet",
        means="The topics were created, and no broker leads their partitions yet.",
        causes=("the cluster is starting or short of brokers",),
        mend=("Run the command again in a moment: `surefoot topics apply agent.py`",),
    ),
    Page(
        number="SF3009",
        title="The process is stopping",
        means="The request came while the process was shutting down.",
        causes=("SIGTERM, Ctrl-C, or a deployment",),
        mend=("Ask again; another process answers.",),
    ),
    Page(
        number="SF3010",
        title="The agent is not ready",
        means="A transaction to its state topic does not commit at present, so /ready fails.",
        causes=("Kafka is away", "the topics are missing or too few brokers are in sync"),
        mend=("`surefoot topics verify agent.py`",),
    ),
    Page(
        number="SF3011",
        title="Another process has this identity",
        means="Two processes use the same member id of a consumer group and have displaced "
        "each other several times. This one has ended; nothing is lost.",
        causes=(
            "two workers are started with one SUREFOOT_INSTANCE, or with the same host name",
            "a deployment started the new process before the old one had ended",
        ),
        mend=(
            "Give each machine an identity of its own: `SUREFOOT_INSTANCE`",
            "See which processes run: `ps -ef | grep surefoot`",
        ),
    ),
    Page(
        number="SF3012",
        title="The schema registry does not answer",
        means="The registry gave no usable answer to a look-up or a registration. Events that "
        "need it wait.",
        causes=(
            "the registry is down or not reachable",
            "its password has changed",
        ),
        mend=(
            'Try it: `curl "$SUREFOOT_REGISTRY_URL/subjects"`',
            "Look at `SUREFOOT_REGISTRY_URL`.",
        ),
    ),
    Page(
        number="SF3013",
        title="AWS does not answer",
        means="A request to AWS got no usable answer. It is retried; messages stay in the queue.",
        causes=(
            "the network or AWS has trouble",
            "the endpoint is another one",
        ),
        mend=("Look at `SUREFOOT_AWS_ENDPOINT_URL` and the log line's reason.",),
    ),
    Page(
        number="SF3014",
        title="The store for large payloads does not answer",
        means="A payload could not be stored or fetched. Results and steps wait; no attempt "
        "is used up.",
        causes=(
            "S3 cannot be reached",
            "the folder's disk is full or not mounted",
        ),
        mend=(
            (
                "Look at `SUREFOOT_BLOBS` and the log line's reason; see docs/how-to/large-"
                "payloads.md."
            ),
        ),
    ),
    Page(
        number="SF3015",
        title="Views are being assigned or restored",
        means="No instance of the views can answer for some partitions at present.",
        causes=(
            (
                "an instance of `surefoot views` has started, stopped or died: the others take "
                "over, after SUREFOOT_SESSION_TIMEOUT_MS at the latest"
            ),
            "they are read from their changelog, or from the events, after a start",
        ),
        mend=(
            "Ask again in a few seconds.",
            "If it stays so, look at the log lines of `surefoot views agent.py`.",
        ),
    ),
    Page(
        number="SF3016",
        title="The views service does not answer",
        means="A gateway, or another instance of the views, could not reach `surefoot views`.",
        causes=(
            "it does not run, or has just died",
            "SUREFOOT_VIEWS_URL or SUREFOOT_VIEWS_ADDRESS names another place",
            "it was started for other agents",
            "it requires a token (SUREFOOT_AUTH), and none is set here: 401 in the log",
        ),
        mend=(
            "See whether it is alive: `curl -sS $SUREFOOT_VIEWS_URL/health`",
            "Start it: `surefoot views agent.py`",
        ),
    ),
    Page(
        number="SF3017",
        title="The Faust app of the views has ended",
        means="`surefoot views` ends with status 69; start it again. Its tables are kept.",
        causes=("Kafka was away for longer than Faust waits", "the folder cannot be written to"),
        mend=(
            "Read the reason in the message, and start it again: `surefoot views agent.py`",
            (
                "If RocksDB is what failed, delete the folder that SUREFOOT_VIEWS_DIR names: it is "
                "restored from Kafka."
            ),
        ),
    ),
    Page(
        number="SF3041",
        title="The archive does not answer",
        means="A file could not be written to or read from the archive. Writing is retried "
        "without limit, and no offset is committed until it succeeds: Kafka keeps the "
        "events for as long as its retention says.",
        causes=(
            "S3 cannot be reached, or is slow",
            "the folder's disk is full or not mounted",
        ),
        mend=(
            "Look at `SUREFOOT_ARCHIVE` and the log line's reason; see docs/how-to/archive.md.",
            "Mend it before the events are older than their topic's retention.",
        ),
    ),
    Page(
        number="SF3042",
        title="An archive file is missing or damaged",
        means="The archive's index lists a file with events of the run; it does not exist or "
        "is damaged.",
        causes=(
            "a lifecycle rule of the bucket, or a person, has deleted it",
            "something else has written to the same place",
        ),
        mend=(
            "Bring the file back that the message names, from a version of the bucket or a copy.",
            'Look at it: `aws s3 ls --recursive "$SUREFOOT_ARCHIVE"`',
        ),
    ),
    Page(
        number="SF3067",
        title="Compression codec is not installed",
        means="The records, or the topic's compression.type, use a codec that this process "
        "lacks. Nothing is skipped: reading continues where it stopped once the codec "
        "is installed.",
        causes=(
            "aiokafka was installed without its extras, or cramjam was taken out",
            "the broker and its producers know a codec that this version does not",
        ),
        mend=(
            "Install the codecs: `pip install 'aiokafka[lz4,snappy,zstd]'`",
            (
                "Have new records packed with another one: `kafka-configs --alter --topic TOPIC "
                "--add-config compression.type=producer`"
            ),
        ),
    ),
    Page(
        number="SF3068",
        title="Damaged record batch",
        means="The bytes from the broker are not what was written: a checksum is wrong, or "
        "they cannot be decompressed. Nothing is skipped; the partition in the message "
        "is not read beyond that offset.",
        causes=(
            "a disk of the broker is broken; a replica elsewhere may still have the batch",
            "something between has changed the bytes",
            "a record has a header whose name is not UTF-8",
        ),
        mend=(
            "Look at the batch on the broker: `kafka-dump-log.sh --deep-iteration --files FILE`",
            "Have another replica lead the partition: `kafka-leader-election.sh --help`",
        ),
    ),
    Page(
        number="SF3066",
        title="The archive refuses access",
        means="The store answers and refuses. Writing is retried until it succeeds, and no "
        "offset is committed until then: Kafka keeps the events for as long as its "
        "retention says. `surefoot gateway` serves what is in the log, and reports this "
        "at /ready.",
        causes=(
            "a permission was taken away, a key has expired",
            "the bucket was deleted",
        ),
        mend=(
            "Look at the log line's reason: the event is `archive_refused`.",
            "Give back the permissions that docs/how-to/archive.md names, or correct the bucket.",
            "Mend it before the events are older than their topic's retention.",
        ),
    ),
    Page(
        number="SF3070",
        title="The store for large payloads refuses access",
        means="The store answers and refuses. Results and steps wait, as during an outage; "
        "after ten minutes of refusals the runs that need it wait for a person.",
        causes=(
            "a permission was taken away, a key has expired",
            "the bucket was deleted",
            "the store does not know the checksums that boto3 adds to requests",
        ),
        mend=(
            "Look at the log line's reason: the event is `blob_refused`.",
            "For a store that is not AWS's own: `export SUREFOOT_AWS_CHECKSUMS=when_required`",
        ),
    ),
    Page(
        number="SF3101",
        title="Not an embedded log",
        means="SUREFOOT_LOG names a file that cannot be opened, is damaged, or is not an "
        "SQLite file.",
        causes=("the folder is missing or not writable", "the disk was full", "a network disk"),
        mend=(
            "Check it: `sqlite3 runs.db 'pragma integrity_check'`",
            "Put a copy in its place, without the -wal and -shm files, or name another file.",
        ),
    ),
    Page(
        number="SF3102",
        title="The file is another program's database",
        means="The SQLite file was not made by Surefoot. It was not changed.",
        causes=("SUREFOOT_LOG has the path of something else",),
        mend=("Name another file: `export SUREFOOT_LOG=sqlite:///runs.db`",),
    ),
    Page(
        number="SF3103",
        title="The file has another format version",
        means="This version of Surefoot cannot read its format. It was not changed.",
        causes=("Surefoot was upgraded or downgraded",),
        mend=("Use the version that wrote it, or name another file with SUREFOOT_LOG.",),
    ),
    Page(
        number="SF3104",
        title="Another process runs agents on this file",
        means="One process at a time runs agents on an embedded log; others may read it.",
        causes=("an earlier `surefoot serve` or `dev` is still there",),
        mend=("Stop the process that the message names, or name another file with SUREFOOT_LOG.",),
    ),
    Page(
        number="SF3105",
        title="The embedded log does not answer",
        means="The file could not be read or written at present.",
        causes=("the disk is full or slow", "another program holds the file"),
        mend=("Look at the disk: `df -h .`",),
    ),
    Page(
        number="SF3186",
        title="No such embedded log",
        means="SUREFOOT_LOG names a file that does not exist or is empty. Only commands that "
        "run agents create a log.",
        causes=(
            "a mistyped path",
            "a relative path, and the command is run in another folder",
            "the agents have not been started yet",
        ),
        mend=(
            "Look at what is set: `echo $SUREFOOT_LOG`",
            "Name it from the root: `export SUREFOOT_LOG=sqlite:////srv/runs.db`",
            "Make one: `surefoot serve AGENT.py`, or `surefoot topics apply AGENT.py`",
        ),
    ),
    Page(
        number="SF3090",
        title="Kafka authentication failed",
        means="A broker answers, and rejects the user, the password, the token or the SASL "
        "mechanism.",
        causes=(
            "the password was changed, or is another cluster's",
            "the token of SUREFOOT_SASL_TOKEN_FILE has expired, or its issuer is not trusted",
            "the user has credentials for another mechanism only",
        ),
        mend=(
            "Check SUREFOOT_SASL_USERNAME, SUREFOOT_SASL_PASSWORD and SUREFOOT_SASL_MECHANISM.",
            "See what the user has: `kafka-configs --describe --entity-type users`",
        ),
    ),
    Page(
        number="SF3091",
        title="TLS certificate rejected",
        means="The TLS handshake with a broker fails; the message says which check, and whose "
        "certificate.",
        causes=(
            "SUREFOOT_SSL_CAFILE is missing, or of another authority",
            "the broker is called by a name or address that its certificate does not have",
            "a certificate has expired, or does not conform to RFC 5280",
        ),
        mend=(
            "Look at what the broker presents: `openssl s_client -connect HOST:PORT -showcerts`",
            "Set SUREFOOT_SSL_CAFILE, SUREFOOT_SSL_CERTFILE and SUREFOOT_SSL_KEYFILE.",
        ),
    ),
    Page(
        number="SF3092",
        title="Security protocol mismatch",
        means="A listener answers at the address, and expects another SUREFOOT_SECURITY_PROTOCOL.",
        causes=(
            "the port is that of another listener of the broker",
            "TLS or SASL was switched on, on one side only",
        ),
        mend=("Set SUREFOOT_SECURITY_PROTOCOL as the message says, or name the other port.",),
    ),
    Page(
        number="SF3093",
        title="Kafka denies a right",
        codes=("topic_denied",),
        means="The cluster has ACLs, and this principal lacks one. The message names the "
        "principal, the operation and the resource. A worker asks again for a minute, then "
        "ends with status 77, and `surefoot worker` with it. If only another agent's commands "
        "are denied, the run that starts that agent, or answers it, waits for a person.",
        causes=(
            "the ACL was never made, or for another prefix",
            "it has not reached all brokers yet",
        ),
        mend=(
            "Grant it with the `kafka-acls` command of the message.",
            "A run that waits for it: `surefoot runs retry AGENT RUN_ID`",
            "Compare with what each process needs: `surefoot acls plan AGENT.py`.",
        ),
    ),
)
