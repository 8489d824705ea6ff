"""SF10: settings and the command line."""

from __future__ import annotations

from surefoot.state.errors.catalogue.page import Page

STARTING_PAGES: tuple[Page, ...] = (
    Page(
        number="SF1001",
        title="Invalid setting",
        means="A SUREFOOT_... variable has a value that cannot be used, or two of them "
        "contradict each other. Nothing was started. The message names the variable.",
        causes=(
            "a number or a choice is mistyped",
            "SASL or TLS settings are given without the protocol that uses them",
            "a value of another environment was copied over",
        ),
        mend=(
            "Look at what is set: `env | grep ^SUREFOOT_`",
            "Compare with the table of settings in docs/operations.md, and set or unset it.",
        ),
    ),
    Page(
        number="SF1002",
        title="No log is configured",
        means="The command needs a Kafka cluster or an embedded log, and neither is configured.",
        causes=("SUREFOOT_BOOTSTRAP_SERVERS is not set in this shell or container",),
        mend=(
            "To use a cluster: `export SUREFOOT_BOOTSTRAP_SERVERS=host:9092`",
            "To do without Kafka: `export SUREFOOT_LOG=sqlite:///runs.db`",
            "To have everything started for you: `surefoot dev agent.py`",
        ),
    ),
    Page(
        number="SF1003",
        title="TLS certificates cannot be used",
        means="The files named by SUREFOOT_SSL_... cannot be read, or do not belong together.",
        causes=("a path is wrong", "the key is not that of the certificate", "no right to read"),
        mend=(
            'Look at the files: `openssl x509 -in "$SUREFOOT_SSL_CERTFILE" -noout -subject`',
            "Correct SUREFOOT_SSL_CAFILE, SUREFOOT_SSL_CERTFILE or SUREFOOT_SSL_KEYFILE.",
        ),
    ),
    Page(
        number="SF1004",
        title="Port in use",
        means="The gateway or the metrics server cannot listen on its address.",
        causes=(
            "another gateway, or an earlier `surefoot dev`, still runs",
            "`surefoot dev` was killed a moment ago: its parts notice, and end by themselves",
            "the address is not one of this machine",
        ),
        mend=(
            "See who listens: `ss -ltnp`",
            "Use another port: `surefoot dev agent.py --port 8788`, or SUREFOOT_GATEWAY_PORT",
            "Of metrics: SUREFOOT_METRICS_PORT",
        ),
    ),
    Page(
        number="SF1005",
        title="An embedded log serves one process",
        means="The command starts several processes, and an SQLite file serves one.",
        causes=("SUREFOOT_LOG is set while a worker, relay, gateway or --processes is asked for",),
        mend=(
            "Run everything in one process: `surefoot serve agent.py`",
            "Or use Kafka: `unset SUREFOOT_LOG; export SUREFOOT_BOOTSTRAP_SERVERS=host:9092`",
        ),
    ),
    Page(
        number="SF1006",
        title="The gateway did not become ready",
        means="After a minute, a transaction still does not commit for every agent.",
        causes=(
            "a worker or the gateway cannot start; their own messages say why",
            "Kafka is slow to start, or has too little memory",
        ),
        mend=(
            "Read the messages of the processes above this one, and fix the first.",
            "Ask the gateway itself: `curl -sS http://127.0.0.1:8787/ready`",
        ),
    ),
    Page(
        number="SF1007",
        title="Invalid option",
        means="The command line asks for something that the command cannot do. Nothing was sent.",
        causes=("JSON without its quotes, since the shell took them", "a mistyped choice"),
        mend=(
            'Quote JSON for the shell: `--payload \'{"name": "ann"}\'`',
            "Read what the command takes: `surefoot runs start --help`",
        ),
    ),
    Page(
        number="SF1008",
        title="The demo cannot use this agent",
        means="The demo sends GitHub's `issues` events, and the file has no agent for them.",
        causes=("the file has several agents, or none with that webhook",),
        mend=("Use the built-in agent: `surefoot demo`",),
    ),
    Page(
        number="SF1010",
        title="Several agents in the file",
        means="The command needs one agent, and the file defines several.",
        causes=("the file was given where one agent's name is needed",),
        mend=("Name the agent: `surefoot runs list NAME`",),
    ),
    Page(
        number="SF1011",
        title="The new agent cannot be written there",
        means="`surefoot new` writes only into a folder of its own. Nothing was written.",
        causes=("the folder is there and has files in it", "this user may not write here"),
        mend=("Choose another name: `surefoot new hello`, of a-z 0-9 and -",),
    ),
    Page(
        number="SF1012",
        title="No such error",
        means="No error has this number or code. The nearest ones are listed.",
        causes=("a digit is mistyped", "the number is of a newer version of Surefoot"),
        mend=("See all of them: `surefoot explain`", "Compare: `surefoot version`"),
    ),
    Page(
        number="SF1020",
        title="A library is not installed",
        means="The agent uses a feature whose library is an optional extra. Nothing was started.",
        causes=("the extra was left out when Surefoot was installed",),
        mend=(
            (
                "Install it: `pip install 'surefoot[aws]'` for SQS and S3, `pip install "
                "'surefoot[ed25519]'` for webhooks that are signed with a private key."
            ),
            (
                "`pip install 'surefoot[metrics]'` for SUREFOOT_METRICS_PORT, `pip install "
                "'surefoot[otel]'` and an exporter for SUREFOOT_TRACES."
            ),
            "`pip install 'surefoot[oidc]'` for SUREFOOT_AUTH=oidc.",
            "`pip install 'surefoot[msk]'` for SUREFOOT_SASL_MECHANISM=AWS_MSK_IAM.",
        ),
    ),
    Page(
        number="SF1021",
        title="AWS resource cannot be used",
        means="A queue or a bucket does not exist, or these credentials may not use it.",
        causes=(
            "the region or the endpoint is another one",
            "the queue's name is mistyped",
            "the role has no right to it",
        ),
        mend=(
            (
                "Look at `SUREFOOT_AWS_REGION` and `SUREFOOT_AWS_ENDPOINT_URL`; credentials are "
                "found as boto3 finds them."
            ),
            "See docs/how-to/aws.md for the rights that are needed.",
        ),
    ),
    Page(
        number="SF1022",
        title="Folder does not exist",
        means="A folder named by a declaration, an option or a setting does not exist where "
        "the command runs. Nothing was started.",
        causes=(
            "the command is run from another folder",
            "the path is mistyped",
        ),
        mend=("Make the folder, or correct the path: it counts from where the command is run.",),
    ),
    Page(
        number="SF1023",
        title="No store for large payloads",
        means="The command works on the store of large payloads, and none is configured.",
        causes=("SUREFOOT_BLOBS is set for the workers and not here",),
        mend=("Set `SUREFOOT_BLOBS` as the workers have it; see docs/how-to/large-payloads.md.",),
    ),
    Page(
        number="SF1024",
        title="Invalid schema command",
        means="`surefoot schemas` lacks an argument, or was given a file that is not an Avro "
        "schema. Nothing was registered.",
        causes=(
            "an option is missing",
            "the file is not JSON, or no schema",
        ),
        mend=("See `surefoot schemas check --help` and docs/how-to/schemas.md.",),
    ),
    Page(
        number="SF1025",
        title="The schema registry cannot be used",
        means="No registry is configured, or its address or credentials are malformed.",
        causes=(
            "SUREFOOT_REGISTRY_URL is not set",
            "the password stands in the address",
            "a token and a password are both given",
        ),
        mend=(
            (
                "Set `SUREFOOT_REGISTRY_URL`, and `SUREFOOT_REGISTRY_USERNAME` with "
                "`SUREFOOT_REGISTRY_PASSWORD`, or `SUREFOOT_REGISTRY_TOKEN`."
            ),
        ),
    ),
    Page(
        number="SF1026",
        title="Invalid gateway address",
        means="The client was given an address that is not a URL, or one that contains a password.",
        causes=("the scheme is missing",),
        mend=(
            (
                "Write it as http://127.0.0.1:8787, and credentials in `headers`; see docs/how-"
                "to/client.md."
            ),
        ),
    ),
    Page(
        number="SF1027",
        title="No such schedule",
        means="The agent declares no schedule of that name, or no worker has started it yet.",
        causes=(
            "the name is mistyped",
            "no worker of the agent has run since it was declared",
        ),
        mend=(
            "See which there are: `surefoot schedules list agent.py`",
            "Start a worker: `surefoot worker agent.py`",
        ),
    ),
    Page(
        number="SF1028",
        title="Invalid backfill range",
        means="The times of a backfill cannot be read, are in the wrong order, or contain too "
        "many ticks.",
        causes=(
            "a time lacks its date",
            "the interval is too long for one backfill",
        ),
        mend=(
            "Give times as 2026-01-31T12:00, and a shorter interval; see docs/how-to/schedules.md.",
        ),
    ),
    Page(
        number="SF1029",
        title="The delivery cannot be mapped again",
        means="The delivery was not verified, was too large to keep, or belongs to no agent "
        "in the given files. No run was started.",
        causes=(
            "the delivery was forged, or its secret has changed",
            "another agent's file is meant",
        ),
        mend=(
            "Look at it: `surefoot webhooks deliveries`",
            "Have the sender send it again.",
        ),
    ),
    Page(
        number="SF1030",
        title="No agent has a trigger",
        means="`surefoot trigger` was given a file whose agents declare no topic, queue or folder.",
        causes=(
            "webhooks are taken by the gateway, not by a trigger process",
            "another file is meant",
        ),
        mend=(
            (
                "Declare one with agent.on_event, agent.sqs or agent.files, or run `surefoot "
                "gateway agent.py`."
            ),
        ),
    ),
    Page(
        number="SF1031",
        title="Faust is not installed",
        means="On Kafka, `surefoot views` is a Faust app with RocksDB tables; both come with "
        "an extra.",
        causes=("Surefoot was installed without the extra `views`",),
        mend=("Install it: `pip install 'surefoot[views]'`",),
    ),
    Page(
        number="SF1057",
        title="No archive is configured",
        means="`surefoot archive` needs a place for events and finished runs.",
        causes=("SUREFOOT_ARCHIVE is not set in this shell or container",),
        mend=(
            "A bucket: `export SUREFOOT_ARCHIVE=s3://my-bucket/surefoot`",
            "A folder: `export SUREFOOT_ARCHIVE=file:///var/lib/surefoot/archive`",
        ),
    ),
    Page(
        number="SF1058",
        title="The archive cannot be used",
        means="SUREFOOT_ARCHIVE names a bucket or folder that does not exist, or that this "
        "process may not read and write. Nothing was archived, and no offset was "
        "committed.",
        causes=(
            "the bucket's or the folder's name is mistyped",
            "a permission is missing: s3:PutObject, s3:GetObject, s3:DeleteObject, s3:ListBucket",
            "the credentials are those of another account",
        ),
        mend=(
            'Look whether it is there: `aws s3 ls "$SUREFOOT_ARCHIVE"`',
            "Correct SUREFOOT_ARCHIVE, or give the permissions of docs/how-to/archive.md.",
        ),
    ),
    Page(
        number="SF1059",
        title="The archive overwrites objects",
        means="The store accepts a conditional write (If-None-Match) and overwrites the "
        "existing object anyway. Two processes that write the same file, as happens "
        "after a crash, could lose events. Nothing was archived.",
        causes=("a store that speaks like S3, of a version without conditional writes",),
        mend=(
            "Use a newer version of the store, or S3 itself.",
            "Use a folder: `export SUREFOOT_ARCHIVE=file:///var/lib/surefoot/archive`",
        ),
    ),
    Page(
        number="SF1060",
        title="The archive belongs to another log",
        means="The archived files are not of this topic: they continue beyond its end, or "
        "hold other records at the same offsets. Nothing was overwritten.",
        causes=(
            "the topic was deleted and made anew, so that its offsets began at 0 again",
            "two Kafka clusters have the same SUREFOOT_ARCHIVE and SUREFOOT_APP",
        ),
        mend=("Name another place: `export SUREFOOT_ARCHIVE=s3://my-bucket/surefoot-second`",),
    ),
    Page(
        number="SF1039",
        title="Missing or invalid subscription secret",
        means="Outgoing webhooks are signed with the secret of their subscription. It is not "
        "set where they are sent from, or is malformed. Nothing was started.",
        causes=(
            "the variable is not set for the relay",
            "the secret is a text of your own, not whsec_ and base64",
            "a shell or a file has cut it",
        ),
        mend=("Make one and set it as docs/how-to/webhooks-out.md shows.",),
    ),
    Page(
        number="SF1070",
        title="The store for large payloads cannot be used",
        means="At start, a process writes a small object to SUREFOOT_BLOBS, reads it and "
        "deletes it. The store refused, or returned something else. Nothing was "
        "started.",
        causes=(
            "the bucket's name is mistyped",
            "a permission is missing: s3:PutObject, s3:GetObject",
            (
                "the store speaks like S3 and does not know the checksums that boto3 adds to "
                "requests (400, 403 or 501 NotImplemented)"
            ),
        ),
        mend=(
            'Look whether it is there: `aws s3 ls "$SUREFOOT_BLOBS"`',
            "For a store that is not AWS's own: `export SUREFOOT_AWS_CHECKSUMS=when_required`",
            "Give the permissions of docs/how-to/large-payloads.md.",
        ),
    ),
    Page(
        number="SF1081",
        title="Listening for everybody without authentication",
        means="The gateway was to listen on an address that other machines may reach, and does not "
        "know who sends a request. It did not start.",
        causes=("SUREFOOT_GATEWAY_HOST is set, and SUREFOOT_AUTH is not",),
        mend=(
            "Require tokens: `export SUREFOOT_AUTH=tokens`, and see docs/how-to/access.md",
            "Behind a proxy that authenticates: `export SUREFOOT_INSECURE=1`",
        ),
    ),
    Page(
        number="SF1082",
        title="Invalid account",
        means="The name of an account, or a pattern of the agents that it may see, is malformed. "
        "Nothing was created.",
        causes=("a space in the name", "a pattern with a dot: a pool belongs to its agent"),
        mend=("`surefoot tokens create ann --role operator --agents 'triage,billing-*'`",),
    ),
    Page(
        number="SF1083",
        title="Token exists",
        means="A name has one token. Nothing was created.",
        causes=("it was created before", "it has expired, and was not revoked"),
        mend=("See which there are: `surefoot tokens list`", "`surefoot tokens revoke ann`"),
    ),
    Page(
        number="SF1084",
        title="No such token",
        means="There is nothing to revoke.",
        causes=("a mistyped name", "another SUREFOOT_APP", "it is revoked already"),
        mend=("See which there are: `surefoot tokens list`",),
    ),
    Page(
        number="SF1085",
        title="Unusable token",
        means="The client cannot sign in to the gateway with the token that it was given. Nothing "
        "was sent.",
        causes=("a missing file", "a file or variable with more than the token in it"),
        mend=("Give it what `surefoot tokens create` has printed, and nothing else.",),
    ),
    Page(
        number="SF1086",
        title="Login cannot be used",
        means="The token that `surefoot login` keeps for this gateway cannot be read or written, "
        "or others could read it. Nothing was sent.",
        causes=(
            "a file that was copied with other permissions",
            "a folder of another user",
            "no home folder, and no XDG_CONFIG_HOME",
        ),
        mend=(
            "Sign in again: `surefoot login URL`",
            "Without a file: `Client.connect(url, token=...)`",
        ),
    ),
    Page(
        number="SF1087",
        title="The gateway does not take the login",
        means="`surefoot login` asked the gateway who the token signs in. Nothing was kept.",
        causes=(
            "a token that is mistyped, revoked or expired, or of another app",
            "a gateway without SUREFOOT_AUTH, which nobody signs in to",
            "another server at this address",
        ),
        mend=("See which tokens there are: `surefoot tokens list`",),
    ),
    Page(
        number="SF1090",
        title="Unusable encryption keys",
        means="The file that SUREFOOT_ENCRYPTION names has no keys that can be used, or the "
        "library is not installed. Nothing was started.",
        causes=("a path is wrong", "the file was edited by hand", "the extra is not installed"),
        mend=(
            'Look at it: `surefoot keys list "$SUREFOOT_ENCRYPTION"`',
            "Make a first one: `surefoot keys add keys.json 2026-11`",
            "Install it: `pip install 'surefoot[encryption]'`",
        ),
    ),
    Page(
        number="SF1091",
        title="The key provider refuses",
        means="Data keys are wrapped by a key of a provider, which does not unwrap one of them, or "
        "makes none. Nothing was started.",
        causes=(
            "the process may not use the provider's key: kms:Decrypt is missing, say",
            "the provider's key is disabled or deleted",
            "the wrapped key, or its id, was edited",
        ),
        mend=(
            'See which there are: `surefoot keys list "$SUREFOOT_ENCRYPTION"`',
            "Give the process the right to decrypt with the named key.",
        ),
    ),
    Page(
        number="SF1093",
        title="The key provider does not answer",
        means="Data keys are wrapped by a key in Vault, which could not be reached, or is not "
        "ready. Nothing was started.",
        causes=("Vault is sealed or restarts", "VAULT_ADDR is of another machine", "a firewall"),
        mend=('Ask it: `curl "$VAULT_ADDR/v1/sys/health"`', "Start the process again."),
    ),
    Page(
        number="SF1092",
        title="No such key, or one of that name",
        means="`surefoot keys` was given an id that the file has already, or does not have, or "
        "that is malformed. The file is as it was.",
        causes=("a mistyped id", "another file"),
        mend=("See which there are: `surefoot keys list keys.json`",),
    ),
)
