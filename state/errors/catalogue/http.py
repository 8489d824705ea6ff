"""SF50, SF51: HTTP and webhooks."""

from __future__ import annotations

from surefoot.state.errors.catalogue.page import Page

_API = "See what each address takes: `curl -sS http://127.0.0.1:8787/openapi.json`"

HTTP_PAGES: tuple[Page, ...] = (
    Page(
        number="SF5001",
        title="Invalid Content-Length",
        means="400: Content-Length is not a number; the request was not read.",
        causes=("a client or proxy that writes its own headers",),
        mend=("Leave the header to the HTTP client.",),
    ),
    Page(
        number="SF5002",
        title="Body too large",
        means="413: the body exceeds SUREFOOT_GATEWAY_BODY_MAX_BYTES and was not read.",
        causes=("a document is sent instead of where it lies",),
        mend=(
            "Send a link or a key, or raise SUREFOOT_GATEWAY_BODY_MAX_BYTES (docs/operations.md).",
        ),
    ),
    Page(
        number="SF5003",
        title="Body timed out",
        means="408: the body arrived too slowly.",
        causes=("a slow or cut network", "a client that waits for something"),
        mend=("Send it again: the same id is the same run.",),
    ),
    Page(
        number="SF5004",
        title="Invalid Last-Event-ID",
        means="400: the value is not an event's id, so the stream cannot resume from it.",
        causes=("an id of something else",),
        mend=("Leave it out, to begin with the first event.",),
    ),
    Page(
        number="SF5005",
        title="Too many event streams",
        means="429: the gateway accepts no further watcher at present, or none of this account, "
        "which may have a quarter of all streams.",
        causes=("watchers that do not close their streams",),
        mend=("Try again later, or run another gateway: `surefoot gateway agent.py`",),
    ),
    Page(
        number="SF5006",
        title="Content type must be application/json",
        means="415: no other content type is accepted, so that no other site's page can make "
        "a browser send a request.",
        causes=("the header is missing",),
        mend=("`curl -H 'Content-Type: application/json' ...`",),
    ),
    Page(
        number="SF5007",
        title="Body is not strict JSON",
        means="400: the body is not JSON, or is ambiguous. The message says where.",
        causes=("quotes lost in the shell", "a key twice, NaN, a comma too many"),
        mend=("Check it: `python -m json.tool < body.json`",),
    ),
    Page(
        number="SF5008",
        title="Missing payload",
        means='422: the body is {"payload": ...}, with an optional "run_id".',
        causes=("the payload was sent bare", "another field beside it"),
        mend=('`-d \'{"payload": "ann"}\'`', _API),
    ),
    Page(
        number="SF5009",
        title="No such operation",
        means="404: the last part of the path is not one of the verbs in the message.",
        causes=("a mistyped verb",),
        mend=(_API,),
    ),
    Page(
        number="SF5010",
        title="Two ids for one command",
        means="422: Idempotency-Key and the body's id differ.",
        causes=("both are made anew by the client",),
        mend=("Give one of them.",),
    ),
    Page(
        number="SF5011",
        title="Unknown agent",
        means="404: the gateway serves only the agents of the files that it was started with.",
        causes=("a mistyped name", "the agent's file was not given to the gateway"),
        mend=("`surefoot gateway agent.py other.py`",),
    ),
    Page(
        number="SF5012",
        title="Not found",
        means="404 or 405: the gateway has no such path, or not with this method.",
        causes=("a mistyped path", "GET instead of POST"),
        mend=(_API,),
    ),
    Page(
        number="SF5013",
        title="Invalid parameter",
        means="422: a part of the path or query is invalid. The message names it.",
        causes=("limit= over 500", "an unknown status="),
        mend=(_API,),
    ),
    Page(
        number="SF5014",
        title="Internal error",
        means="500: an unexpected error; only the gateway's log has the details.",
        causes=("a bug, in Surefoot or in a webhook's mapping",),
        mend=("Look for `request_failed` in the gateway's log, and report it with its trace.",),
    ),
    Page(
        number="SF5015",
        title="The log is unavailable",
        means="503: Kafka (or the file) did not answer in time. The request may or may not "
        "have been carried out; repeating it is safe.",
        causes=("Kafka is restarting or cannot be reached",),
        mend=("Send it again after Retry-After.", "`curl -sS http://127.0.0.1:8787/ready`"),
    ),
    Page(
        number="SF5016",
        title="The gateway does not answer",
        means="The client retried until its time limit. The request may have been carried "
        "out: repeat it with the same id.",
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
        title="Not a gateway",
        means="Something else answers at the client's address.",
        causes=("the port is another program's", "a proxy answers in its place"),
        mend=("Look at what answers: `curl http://127.0.0.1:8787/health`",),
        codes=("not_a_gateway",),
    ),
    Page(
        number="SF5022",
        title="Invalid filter",
        means="400: the stream has no such filter, or the filter no such value. It would have "
        "matched everything, or nothing.",
        causes=("a typing error", "an event type of another version"),
        mend=(
            "The message lists what there is.",
            "`?type=`, `?status=` and `?step=` can be given as often as you like.",
        ),
    ),
    Page(
        number="SF5023",
        title="Cross-origin WebSocket refused",
        means="403: the page that opens the WebSocket was not served by this gateway. "
        "Otherwise any page could read what a person's browser can reach.",
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
        title="Invalid page cursor",
        means="422: pass the cursor exactly as the previous page returned it.",
        causes=("a shortened or altered address",),
        mend=("Leave `before` out, to begin with the latest run.",),
    ),
    Page(
        number="SF5033",
        title="Cross-site request refused",
        means="403: the browser reports that the request comes from a page of another site. "
        "Nothing was changed.",
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
        title="No such schedule",
        means="404: the agent has no schedule of that name, or no worker has started it yet.",
        causes=("a typing error", "no worker has run since the schedule was declared"),
        mend=("See which there are: `surefoot schedules list agent.py`",),
    ),
    Page(
        number="SF5074",
        title="Host not allowed",
        means="421: the Host is neither loopback, nor the address of the connection, nor one "
        "of SUREFOOT_GATEWAY_HOSTS; the request was not read. This stops pages whose "
        "name resolves to this machine (DNS rebinding).",
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
        title="Agent not available",
        means="503: the agent's topics do not exist or have the wrong configuration, as the "
        "message says. The gateway checks every ten seconds, and serves the other "
        "agents meanwhile.",
        causes=("the agent is new, and its topics were not created", "a topic was changed by hand"),
        mend=(
            "`surefoot topics apply agent.py`",
            "See what is wrong: `surefoot topics verify agent.py`",
        ),
    ),
    Page(
        number="SF5081",
        title="Not signed in",
        means="401: the gateway requires a token, and the request has none that is valid. The "
        "request was not read.",
        causes=(
            "no Authorization header",
            "the token has expired or was revoked",
            "a token of another SUREFOOT_APP",
        ),
        mend=(
            '`curl -H "Authorization: Bearer $TOKEN" http://127.0.0.1:8787/agents`',
            "See which tokens there are: `surefoot tokens list`",
        ),
        codes=("not_signed_in",),
    ),
    Page(
        number="SF5082",
        title="The role does not allow it",
        means="403: the account may read, and needs another role for this request. Nothing was "
        "done, and the try is in the audit trail.",
        causes=("an operator approves, or an approver steers: each is a role of its own",),
        mend=("Create a token with the role: `surefoot tokens create ann-ops --role operator`",),
        codes=("forbidden",),
    ),
    Page(
        number="SF5083",
        title="Another name than who is signed in",
        means='403: "by" of a command is the account that is signed in, and the request names '
        "somebody else. Nothing was done.",
        causes=("a program speaks for several people with one token",),
        mend=('Leave "by" out, or give each person a token.',),
    ),
    Page(
        number="SF5084",
        title="The identity provider is unavailable",
        means="503: the gateway has no keys of the provider to check its tokens with. Those of "
        "`surefoot tokens` still sign in. Keys that it has count while the provider is away.",
        causes=(
            "the provider cannot be reached from the gateway",
            "SUREFOOT_OIDC_ISSUER is not spelled as the provider's discovery document spells it",
        ),
        mend=(
            'See what it says: `curl -sS "$SUREFOOT_OIDC_ISSUER/.well-known/openid-configuration"`',
            "The reason is the line `issuer_unavailable` in the gateway's log.",
        ),
    ),
    Page(
        number="SF5085",
        title="The proxy names no account",
        means="403: the request comes from the trusted proxy, and its headers name nobody who may "
        "sign in. The try is in the audit trail.",
        causes=(
            "none of the person's groups has a role, or two of them have different ones",
            "a header that is there twice: the client has sent one, and the proxy did not strip it",
            "a name with a space, or of more than 128 characters",
        ),
        mend=(
            "Give the group a role: `export SUREFOOT_PROXY_ROLES=shop-ops=operator`",
            "Have the proxy remove these headers from what clients send.",
        ),
    ),
    Page(
        number="SF5096",
        title="Bulk retry already in progress",
        means="503: the gateway retries failed effects in bulk for one request at a time.",
        causes=("the dashboard does it in another window", "a script asks from two places"),
        mend=("Ask again a little later, as Retry-After says.",),
    ),
    Page(
        number="SF5101",
        title="Unknown webhook source",
        means="The source's name is not a known provider, and the declaration has no "
        "provider=. Deliveries could not be verified.",
        causes=("a mistyped source", "a sender of your own"),
        mend=("Give provider= one of those that the message lists, or Hmac or Bearer.",),
    ),
    Page(
        number="SF5102",
        title="No agent for this webhook source",
        means="404: no agent of this gateway has the source at the end of the URL.",
        causes=("the URL at the sender is wrong", "the agent's file was not given"),
        mend=("Set the URL to .../webhooks/SOURCE as in `@agent.webhook(SOURCE)`.",),
    ),
    Page(
        number="SF5103",
        title="Missing or wrong signature",
        means="401: the delivery was not signed with the gateway's secret.",
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
        title="Delivery without id",
        means="400: the header or field that identifies a repeated delivery is missing.",
        causes=("a request made by hand without it",),
        mend=("Send the header or field that the message names.",),
    ),
    Page(
        number="SF5105",
        title="Unreadable delivery",
        means="400: the delivery's id is in the body, and the body is neither JSON nor a form.",
        causes=("the sender is set to another format",),
        mend=("Set the content type at the sender to application/json.",),
    ),
    Page(
        number="SF5106",
        title="Webhook source without a secret",
        means="The gateway does not start, since it could not verify deliveries.",
        causes=("the variable is not set in this environment",),
        mend=(
            "`export SUREFOOT_WEBHOOK_GITHUB_SECRET=$(openssl rand -hex 32)`",
            "Set the same secret at the sender.",
        ),
    ),
    Page(
        number="SF5107",
        title="Weak webhook secret",
        means="The secret is empty, a placeholder or too short.",
        causes=("an example value was left in place", "a comma too many"),
        mend=("Make a strong one: `openssl rand -hex 32`",),
    ),
    Page(
        number="SF5108",
        title="Delivery does not fit every agent",
        means="422: a mapping raised or made a payload that cannot be stored. The runs of "
        "other agents were started; a redelivery starts only the missing ones.",
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
        title="Compressed delivery",
        means="415: the body has a Content-Encoding that the gateway does not accept.",
        causes=("the sender or a proxy compresses requests", "another encoding than gzip"),
        mend=(
            "If the sender does it, with gzip: `export SUREFOOT_GATEWAY_GZIP=true`",
            "Turn compression off between the sender and the gateway.",
        ),
    ),
    Page(
        number="SF5178",
        title="Delivery cannot be decompressed",
        means="400: the body is not one whole gzip stream. 413: decompressed, it exceeds "
        "SUREFOOT_GATEWAY_BODY_MAX_BYTES; no more than that was decompressed.",
        causes=("the body was cut off, or is no gzip", "a document is sent, well compressed"),
        mend=(
            "Have it sent again, or without a Content-Encoding.",
            "Raise SUREFOOT_GATEWAY_BODY_MAX_BYTES (docs/operations.md).",
        ),
    ),
    Page(
        number="SF5179",
        title="Webhook mappings do not end",
        means="503: the mappings took longer than SUREFOOT_GATEWAY_MAPPING_S, or occupy all "
        "threads of their source. Nothing was started; a redelivery is mapped again. "
        "Other sources continue.",
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
