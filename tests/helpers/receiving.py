"""Message copies of one application, and how a receiver is given them without a server."""

import json

from helpers.credentials import APP_ID, CREDENTIALS
from rbim import Credentials
from rbim.callbacks import DeliveryEnded, DeliveryStarted, HandlingEnded, HandlingStarted, sign

OLD = Credentials(app_id=APP_ID, app_token="0" * 32)


def body(**fields):
    document = {"eventType": "1", "convType": "TEAM", "to": "g1", "fromAccount": f"{APP_ID}#1001", "msgType": "TEXT"}
    return json.dumps(document | {"body": "你好", "msgId": "m1"} | fields).encode()


async def post(receiver, content, *, credentials=CREDENTIALS, at=None, **changed):
    headers = sign(content, credentials=credentials, now=at or receiver.clock.now()) | changed
    return await receiver.receive(headers, content)


def results_for(append):
    def observe(observation):
        if not isinstance(observation, (DeliveryStarted, DeliveryEnded, HandlingStarted, HandlingEnded)):
            append(observation)

    return observe
