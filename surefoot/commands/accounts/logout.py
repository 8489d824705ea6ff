"""`surefoot logout`: forgets the token of a gateway."""

from __future__ import annotations

import os

import typer

from surefoot.commands.groups import commands
from surefoot.commands.options import GatewayUrl
from surefoot.infra.http import logins
from surefoot.infra.http.client import gateway_address

app = commands()


@app.command()
def logout(url: GatewayUrl = "http://127.0.0.1:8787") -> None:
    """Forget the token of a gateway. It stays valid until it expires or is revoked."""
    address = gateway_address(url)
    there = logins.forget_login(address, os.environ)
    typer.echo(f"signed out of {address}" if there else f"there was no login of {address}")
