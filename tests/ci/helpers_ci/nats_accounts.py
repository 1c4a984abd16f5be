"""An operator, an account and a user of NATS servers, signed by hand: lines for servers, and a credentials file."""

import base64
import json
import os
import time

TEMPLATE = """-----BEGIN NATS USER JWT-----
{jwt}
------END NATS USER JWT------

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------
"""
STORAGE = ("mem_storage", "disk_storage", "streams", "consumer")
ENDLESS = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf", *STORAGE), -1)


class Key:
    """A key pair of a kind: operator, account or user."""

    def __init__(self, kind):
        import nkeys

        prefix = {
            "operator": nkeys.PREFIX_BYTE_OPERATOR,
            "account": nkeys.PREFIX_BYTE_ACCOUNT,
            "user": nkeys.PREFIX_BYTE_USER,
        }[kind]
        self.kind = kind
        self.seed = nkeys.encode_seed(os.urandom(32), prefix)
        self._pair = nkeys.from_seed(bytearray(self.seed))
        self.public = self._pair.public_key.decode()

    def signs(self, subject, **facts):
        """Return a JWT about another key."""
        claims = {
            "jti": base64.b32encode(os.urandom(32)).decode().rstrip("="),
            "iat": int(time.time()),
            "iss": self.public,
            "sub": subject.public,
            "name": subject.kind,
            "nats": {**facts, "type": subject.kind, "version": 2},
        }
        parts = [_encoded(json.dumps(each).encode()) for each in ({"typ": "JWT", "alg": "ed25519-nkey"}, claims)]
        signed = ".".join(parts)
        return f"{signed}.{_encoded(self._pair.sign(signed.encode()))}"


def _encoded(content):
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def made(folder):
    """Return the lines for a server that lets only one user in, and the path of this user's credentials file."""
    operator, account, user, system = Key("operator"), Key("account"), Key("user"), Key("account")
    credentials = folder / "user.creds"
    allowed = {"pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1}
    text = TEMPLATE.format(jwt=account.signs(user, **allowed), seed=user.seed.decode())
    credentials.write_text(text, encoding="utf-8")
    limits = {**ENDLESS, "wildcards": True}
    without = {name: limit for name, limit in limits.items() if name not in STORAGE}
    known = {
        each.public: operator.signs(each, limits=of, default_permissions={"pub": {}, "sub": {}})
        for each, of in ((account, limits), (system, without))
    }
    preloaded = "\n".join(f"  {public}: {jwt}" for public, jwt in known.items())
    lines = [
        f"operator: {operator.signs(operator)}",
        f"system_account: {system.public}",
        "resolver: MEMORY",
        f"resolver_preload: {{\n{preloaded}\n}}",
    ]
    return "\n".join(lines), credentials
