"""SF50, SF51: HTTP and webhooks."""

from __future__ import annotations

from surefoot.state.errors.catalogue.page import Page

_API = "See what each address takes: `curl -sS http://127.0.0.1:8787/openapi.json`"

HTTP: tuple[Page, ...] = (
    Page(
        number="SF5001",
        title="Content-Length is not a number",
        means="400: the request is not HTTP as it should be; it was not read.",
        causes=("a client or proxy that writes its own headers",),
        mend=("Leave the header to the HTTP client.",),
    ),
    Page(
        number="SF5002",
        title="The body is too long",
        means="413: the request's body is over SUREFOOT_GATEWAY_BODY_MAX_BYTES and was not read.",
        causes=("a document is sent instead of where it lies",),
        mend=(
            "Send a link or a key, or raise SUREFOOT_GATEWAY_BODY_MAX_BYTES (docs/operations.md).",
        ),
    ),
    Page(
        number="SF5003",
        title="The body did not come in time",
        means="408: the connection was open, and the body came too slowly.",
        causes=("a slow or cut network", "a client that waits for something"),
        mend=("Send it again: the same id is the same run.",),
    ),
    Page(
        number="SF5004",
        title="Last-Event-ID is not an event's id",
        means="400: the stream cannot go on from there.",
        causes=("an id of something else",),
        mend=("Leave it out, to begin with the first event.",),
    ),
    Page(
        number="SF5005",
        title="Too many event streams are open",
        means="429: the gateway serves no further watcher just now.",
        causes=("watchers that do not close their streams",),
        mend=("Try again later, or run another gateway: `surefoot gateway agent.py`",),
    ),
    Page(
        number="SF5006",
        title="The body has to be application/json",
        means="415: no other content type is taken, so that no page of somebody else's can make a "
        "browser send a request.",
        causes=("the header is missing",),
        mend=("`curl -H 'Content-Type: application/json' ...`",),
    ),
    Page(
        number="SF5007",
        title="The body is not strict JSON",
        means="400: it cannot be read without doubt. The message says where.",
        causes=("quotes lost in the shell", "a key twice, NaN, a comma too many"),
        mend=("Check it: `python -m json.tool < body.json`",),
    ),
    Page(
        number="SF5008",
        title="A start needs a payload",
        means='422: the body is {"payload": ...}, with "run_id" if the run is to have a name.',
        causes=("the payload was sent bare", "another field beside it"),
        mend=('`-d \'{"payload": "ann"}\'`', _API),
    ),
    Page(
        number="SF5009",
        title="There is no such operation",
        means="404: the last part of the address is none of the verbs that the message lists.",
        causes=("a mistyped verb",),
        mend=(_API,),
    ),
    Page(
        number="SF5010",
        title="Two ids for one command",
        means="422: Idempotency-Key and the body's id say different things.",
        causes=("both are made anew by the client",),
        mend=("Give one of them.",),
    ),
    Page(
        number="SF5011",
        title="The gateway knows no such agent",
        means="404: it serves the agents of the files that it was started with.",
        causes=("a mistyped name", "the agent's file was not given to the gateway"),
        mend=("`surefoot gateway agent.py other.py`",),
    ),
    Page(
        number="SF5012",
        title="There is nothing at this address",
        means="404 or 405: the gateway has no such path, or not with this method.",
        causes=("a mistyped path", "GET instead of POST"),
        mend=(_API,),
    ),
    Page(
        number="SF5013",
        title="A parameter of the request is wrong",
        means="422: a part of the address or query cannot be used. The message names it.",
        causes=("limit= over 500", "an unknown status="),
        mend=(_API,),
    ),
    Page(
        number="SF5014",
        title="Internal error",
        means="500: nobody foresaw this; what it was is in the gateway's log only.",
        causes=("a bug, in Surefoot or in a webhook's mapping",),
        mend=("Look for `request_failed` in the gateway's log, and report it with its trace.",),
    ),
    Page(
        number="SF5015",
        title="The log is away",
        means="503: Kafka (or the file) did not answer in time. The request may or may not have "
        "been taken; sending it again is safe.",
        causes=("Kafka is restarting or cannot be reached",),
        mend=("Send it again after Retry-After.", "`curl -sS http://127.0.0.1:8787/ready`"),
    ),
    Page(
        number="SF5016",
        title="The gateway does not answer",
        means="The client has asked the gateway for as long as its patience allows. What was "
        "asked for may have been done: ask again with the same id.",
        causes=(
            "the gateway is down, or its log is away",
            "a proxy between the two has trouble",
        ),
        mend=(
            "See whether it is there: `curl http://127.0.0.1:8787/health`",
            "Start one: `surefoot gateway agent.py`",
        ),
    ),
    Page(
        number="SF5017",
        title="This is not a gateway",
        means="Something else answers at the address that the client was given.",
        causes=("the port is another program's", "a proxy answers in its place"),
        mend=("Look at what answers: `curl http://127.0.0.1:8787/health`",),
        codes=("not_a_gateway",),
    ),
    Page(
        number="SF5022",
        title="There is no such filter",
        means="400: a filter of an event stream is misspelt, or its value is none that there is. "
        "It would have chosen everything, or nothing for ever.",
        causes=("a typing error", "an event type of another version"),
        mend=(
            "The message lists what there is.",
            "`?type=`, `?status=` and `?step=` can be given as often as you like.",
        ),
    ),
    Page(
        number="SF5023",
        title="A page of another origin may not watch",
        means="403: a browser says that the page which opens the WebSocket was not served from "
        "the gateway's own address. Any page could otherwise read what a person's browser can "
        "reach.",
        causes=(
            "a page of another site, or on another port",
            "a proxy in front of the gateway that changes the Host header",
        ),
        mend=(
            "Serve the page and the gateway under one address, through one proxy.",
            "Have the proxy pass the Host header on as it came.",
        ),
    ),
    Page(
        number="SF5032",
        title="No page of the list begins there",
        means="422: the page to go on with has to be named as the page before it did.",
        causes=("a shortened or altered address",),
        mend=("Leave `before` out, to begin with the latest run.",),
    ),
    Page(
        number="SF5033",
        title="Another site's page asks for a change",
        means="403: a browser says that the request comes from a page of another site. Nothing "
        "was changed.",
        causes=(
            "a foreign page that tries to act in your name",
            "a proxy that changes the Host header and leaves Origin as it is",
        ),
        mend=(
            "Use the dashboard or a program of your own, not another site's page.",
            "Have the proxy pass on the Host header that the browser has sent.",
        ),
    ),
    Page(
        number="SF5036",
        title="There is no such schedule",
        means="404: the agent has no schedule of that name, or no worker has begun it yet.",
        causes=("a typing error", "no worker has run since the schedule was declared"),
        mend=("See which there are: `surefoot schedules list agent.py`",),
    ),
    Page(
        number="SF5074",
        title="The Host of the request is not served here",
        means="421: the request names a host that is neither loopback, nor the address that was "
        "connected to, nor one of SUREFOOT_GATEWAY_HOSTS; it was not read. So no page of somebody "
        "else's, whose name leads to this machine, can have a browser ask.",
        causes=(
            "a proxy passes on the public name that it was asked for",
            "the gateway, views or metrics are asked for by the name of a service or a machine",
        ),
        mend=(
            "`export SUREFOOT_GATEWAY_HOSTS=hooks.example.com,surefoot-gateway` where it runs",
            "Or have the proxy send the address that it connects to as Host.",
        ),
    ),
    Page(
        number="SF5075",
        title="An agent is not served just now",
        means="503: its topics are not there or not as they must be, as the message tells. Nothing "
        "of it is read or written until they are; the gateway looks every ten seconds, and serves "
        "the other agents meanwhile.",
        causes=("the agent is new, and its topics were not created", "a topic was changed by hand"),
        mend=(
            "`surefoot topics apply agent.py`",
            "See what is wrong: `surefoot topics verify agent.py`",
        ),
    ),
    Page(
        number="SF5096",
        title="Effects are being tried again by somebody else",
        means="503: having all failed effects tried again reads what is on record of them, and the "
        "gateway does that for one request at a time.",
        causes=("the dashboard does it in another window", "a script asks from two places"),
        mend=("Ask again a little later, as Retry-After says.",),
    ),
    Page(
        number="SF5101",
        title="Nobody speaks this webhook source",
        means="The declaration does not say how to verify what is sent to this source: its name is "
        "none of the known senders, and provider= says nothing else.",
        causes=("a mistyped source", "a sender of your own"),
        mend=("Give provider= one of those that the message lists, or Hmac or Bearer.",),
    ),
    Page(
        number="SF5102",
        title="No agent listens to this webhook source",
        means="404: the sender's URL ends in a source that no agent of this gateway has.",
        causes=("the URL at the sender is wrong", "the agent's file was not given"),
        mend=("Set the URL to .../webhooks/SOURCE as in `@agent.webhook(SOURCE)`.",),
    ),
    Page(
        number="SF5103",
        title="The signature is missing or wrong",
        means="401: the delivery was not signed with the secret that the gateway has.",
        causes=(
            "the secret here and at the sender are not the same",
            "something between has changed the body",
        ),
        mend=(
            "Set SUREFOOT_WEBHOOK_<SOURCE>_SECRET to what the sender has.",
            "While one is replaced by another, give both, with a comma between them.",
        ),
    ),
    Page(
        number="SF5104",
        title="The delivery has no id",
        means="400: the header or field by which a repeated delivery is known is missing.",
        causes=("a request made by hand without it",),
        mend=("Send the header or field that the message names.",),
    ),
    Page(
        number="SF5105",
        title="The delivery cannot be read",
        means="400: the id of this sender's deliveries stands in the body, and the body is neither "
        "JSON nor a form.",
        causes=("the sender is set to another format",),
        mend=("Set the content type at the sender to application/json.",),
    ),
    Page(
        number="SF5106",
        title="A webhook source has no secret",
        means="The gateway does not start, since it could not tell real deliveries from others.",
        causes=("the variable is not set in this environment",),
        mend=(
            "`export SUREFOOT_WEBHOOK_GITHUB_SECRET=$(openssl rand -hex 32)`",
            "Set the same secret at the sender.",
        ),
    ),
    Page(
        number="SF5107",
        title="A webhook's secret is too weak",
        means="It is empty, a placeholder or too short, so that it could be guessed.",
        causes=("an example value was left in place", "a comma too many"),
        mend=("Make a strong one: `openssl rand -hex 32`",),
    ),
    Page(
        number="SF5108",
        title="A delivery does not fit every agent",
        means="422: a mapping raised or made a payload that cannot be stored. The runs of other "
        "agents were started; sending it again starts the missing ones only.",
        causes=("a field that the mapping reads is missing in this event",),
        mend=(
            (
                "See the trace `mapping_failed` in the gateway's log; return None for events that "
                "are not wanted, then have it delivered again."
            ),
        ),
    ),
    Page(
        number="SF5109",
        title="A delivery is compressed",
        means="415: the body has a Content-Encoding, and the gateway does not unpack it.",
        causes=("the sender or a proxy compresses requests", "another encoding than gzip"),
        mend=(
            "If the sender does it, with gzip: `export SUREFOOT_GATEWAY_GZIP=true`",
            "Turn compression off between the sender and the gateway.",
        ),
    ),
    Page(
        number="SF5178",
        title="A compressed delivery cannot be unpacked",
        means="400: the body is not one whole gzip stream. 413: unpacked, it is over "
        "SUREFOOT_GATEWAY_BODY_MAX_BYTES; no more than that was unpacked.",
        causes=("the body was cut off, or is no gzip", "a document is sent, well compressed"),
        mend=(
            "Have it sent again, or without a Content-Encoding.",
            "Raise SUREFOOT_GATEWAY_BODY_MAX_BYTES (docs/operations.md).",
        ),
    ),
    Page(
        number="SF5179",
        title="The mappings of a webhook source do not end",
        means="503: they took longer than SUREFOOT_GATEWAY_MAPPING_S, or all their threads are at "
        "deliveries that did. Nothing was started; sending it again maps it again. Other sources "
        "go on.",
        causes=(
            "a mapping that asks a server or a database which does not answer",
            "a loop without an end",
        ),
        mend=(
            "See `mapping_hangs` in the gateway's log: it names the source and its agents.",
            "Have the mapping decide by the delivery alone, and do the work in a step.",
            "A thread that hangs stays: start the gateway again, `surefoot gateway agent.py`",
        ),
    ),
)
