"""Deliveries for an inbox, as a receiver makes them."""

import json

from rbim.callbacks.delivery import delivery_of
from rbim.emulator.clock import START


def delivery(msg_id, team="b", *, at=START, msg_type="TEXT", **changes):
    document = {"eventType": "1", "convType": "TEAM", "to": team, "fromAccount": "app#a", "msgType": msg_type}
    return delivery_of(json.dumps(document | {"msgId": str(msg_id)}).encode(), app_id="app", received=at)._replace(**changes)


def unreadable(text="no JSON", *, at=START):
    return delivery_of(text.encode(), app_id="app", received=at)


def bytes_of(document):
    return json.dumps(document, ensure_ascii=False).encode()
