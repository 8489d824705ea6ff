"""A help desk: a model that looks orders up and, if a person approves, refunds them.

    surefoot dev examples/tool_loop/agent.py
    surefoot runs start helpdesk --payload '"Order 17 came broken, I want my money back"'

The model is a fake that goes by plain rules, so that it needs no key. For a real one, put in its
place

    from surefoot.agents.openai_model import OpenAIModel
    model=OpenAIModel("gpt-5")

What comes after the steps of the loop is a step of this agent's own: it tells the customer.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from typing import Any

from surefoot import Agent, Context, Done
from surefoot.agents.tool_loop import Ask, Reply, ToolCall, ToolError, plan_tools, tool, tool_loop

#: where the answer is posted; empty: nowhere
CUSTOMER_URL = os.environ.get("HELPDESK_CUSTOMER_URL", "")

ORDERS = {
    "17": {"item": "a blue vase", "cents": 4900, "paid": True},
    "18": {"item": "a red vase", "cents": 5200, "paid": False},
}
#: what was refunded, by order: stands for the bank
REFUNDED: dict[str, int] = {}

helpdesk = Agent("helpdesk")


@tool
async def look_up(order: str) -> dict[str, Any]:
    """Look up an order by its number: what it was, what it cost in cents, whether it was paid."""
    if order not in ORDERS:
        raise ToolError(f"there is no order {order}")
    return ORDERS[order]


async def was_refunded(order: str, cents: int) -> bool:
    """Ask the bank whether an earlier attempt got through."""
    return REFUNDED.get(order) == cents


@tool(once=True, probe=was_refunded, approve=True, expires="1d")
async def refund(order: str, cents: int) -> str:
    """Pay the price of an order back."""
    REFUNDED[order] = cents
    return f"{cents} cents were paid back"


async def model(ask: Ask) -> AsyncIterator[str | Reply]:
    """Stands for a model. It looks the order up, pays it back, and says so."""
    said = " ".join(each["content"] for each in ask.messages if each["role"] == "user")
    results = {each["name"]: each for each in ask.messages if each["role"] == "tool"}
    named = re.search(r"\d+", said)
    if named is None:
        text = "Which order is it about?"
    elif "look_up" not in results:
        yield _call("look_up", order=named[0])
        return
    elif "error" in results["look_up"]:
        text = f"I cannot help: {results['look_up']['content']}."
    elif "refund" not in results:
        yield _call("refund", order=named[0], cents=ORDERS[named[0]]["cents"])
        return
    elif "error" in results["refund"]:
        text = f"I am sorry: {results['refund']['content']}."
    else:
        text = f"Done: {results['refund']['content']}."
    for word in re.findall(r"\S+\s*", text):
        yield word


def _call(name: str, **arguments: Any) -> Reply:
    return Reply(tool_calls=(ToolCall(id=f"{name}-1", name=name, arguments=arguments),))


@helpdesk.step
async def tell_customer(ctx: Context, answer: str) -> Done:
    """The loop has come to its answer."""
    if CUSTOMER_URL:
        ctx.outbox.http("POST", CUSTOMER_URL, json={"text": answer})
    return Done(answer)


loop = tool_loop(
    helpdesk,
    model=model,
    tools=[look_up, refund, *plan_tools()],
    system="You are the help desk of a shop. Look an order up before you refund it.",
    max_turns=8,
    then=tell_customer,
)
