"""`surefoot login`: keeps the token of a gateway for the client."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import typer

from surefoot.commands.groups import commands
from surefoot.commands.options import GatewayUrl
from surefoot.infra.http import logins
from surefoot.infra.http.client import GatewayHttp, gateway_address, with_token
from surefoot.infra.runtime.terminal import printable
from surefoot.state.errors import ConfigError, NotFound, Refused

app = commands()

_PATIENCE_S = 10.0


@app.command()
def login(url: GatewayUrl = "http://127.0.0.1:8787") -> None:
    """Sign in to a gateway: keep its token for the client.

    Asks for the token without showing it, or reads it from standard input if that is not a
    terminal. Keeps it, once the gateway has said whom it signs in, in a file that only you can
    read. It is sent to no other address.
    """
    address = gateway_address(url)
    if sys.stdin.isatty():
        token = typer.prompt("Token", hide_input=True, err=True)
    else:
        token = sys.stdin.read()
    who = asyncio.run(_who(address, with_token(address, {}, token, {})))
    file = logins.keep_login(address, token.strip(), os.environ)
    typer.echo(f"signed in to {address} as {printable(who['name'])}, {printable(who['role'])}")
    typer.echo(f"the token is in {file}; `surefoot logout {address}` forgets it", err=True)


async def _who(address: str, headers: dict[str, str]) -> Any:
    """Return the account that these headers sign in.

    Raises: ConfigError — nobody's; Unavailable.
    """
    gateway = GatewayHttp(address, headers=headers, patience_s=_PATIENCE_S)
    try:
        return (await gateway.ask("GET", "/session")).value
    except NotFound:
        raise ConfigError("SF1087", f"nobody signs in to {address}: no accounts there") from None
    except Refused as error:
        raise ConfigError("SF1087", f"{address} refuses: {printable(str(error))}") from None
    finally:
        await gateway.close()
