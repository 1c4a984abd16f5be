"""The signature of a delivery by hand: the rules as documented, with hashlib and without any code of rbim."""

import hashlib
import re

APP_ID = "fuzzed8947b5d6c80147b8a2b7c30123"
TOKEN = "token-4b9de2a14f5c8b3e6d1a90c2f4"
OLD_TOKEN = "older-9de2a14f5c8b3e6d1a90c2f4e8"
MOMENT = 1767323045678  # CurTime of a genuine delivery: milliseconds
HEX = re.compile(rb"[0-9a-fA-F]{32}")


def headers_for(body, moment=MOMENT, token=TOKEN):
    digest = hashlib.md5(body).hexdigest().upper()
    checksum = hashlib.md5(f"{APP_ID}{token}{digest}{moment}".encode()).hexdigest().upper()
    return {"CheckSum": checksum, "MD5": digest, "CurTime": str(moment)}


def filled(head, body):
    """Return the head of a request with the words $MD5, $SUM, $OLD, $NOW and $LEN filled in for a genuine delivery."""
    if b"$" not in head:
        return head
    current, old = headers_for(body), headers_for(body, token=OLD_TOKEN)
    words = {
        "$MD5": current["MD5"],
        "$SUM": current["CheckSum"],
        "$OLD": old["CheckSum"],
        "$NOW": str(MOMENT),
        "$LEN": str(len(body)),
    }
    for word, text in words.items():
        head = head.replace(word.encode(), text.encode())
    return head


def genuine(body, within):
    """Whether the bytes contain a CheckSum that some token makes for this very body, with the MD5 and the time."""
    digests = {each for each in HEX.findall(within) if each.decode().lower() == hashlib.md5(body).hexdigest()}
    lowered = within.lower()
    for digest in digests:
        for moment in set(re.findall(rb"(?=([0-9]{13}))", within)):
            for token in (TOKEN, OLD_TOKEN):
                checksum = hashlib.md5((APP_ID + token).encode() + digest + moment).hexdigest()
                if checksum.encode() in lowered:
                    return True
    return False


def is_probe(body):
    """Whether a body is an empty object in at most 16 bytes: the platform tries whether somewhere answers."""
    codecs = ("utf-8-sig", "utf-32", "utf-16") if body[:2] in (b"\xff\xfe", b"\xfe\xff") or not body[0:1] else ("utf-8-sig",)
    for codec in codecs:
        try:
            text = body.decode(codec)
        except UnicodeDecodeError:
            continue
        return len(body) <= 16 and "".join(text.split(None)) == "{}" and not set(text) - set("{} \t\n\r\x0b\x0c")
    return False


def defects(headers, body, *, most):  # noqa: C901  # one rule after the other
    """Return every reason for which a delivery must be refused; none for a genuine one. No time is too early or too late."""
    found = set()
    values = {}
    for name, value in headers:
        key = bytes(each + 32 if 65 <= each <= 90 else each for each in name)
        if key == b"content-encoding":
            if value.strip().lower() not in (b"", b"identity"):
                found.add("unsupported_encoding")
        elif key in (b"checksum", b"md5", b"curtime"):
            if key in values:
                found.add("duplicate_header")
            values.setdefault(key, value)
    if len(body) > most:
        found.add("too_large")
    if len(values) < 3:
        return found | {"missing_header"}
    checksum, digest, moment = values[b"checksum"], values[b"md5"], values[b"curtime"]
    if not HEX.fullmatch(checksum) or not HEX.fullmatch(digest):
        found.add("bad_format")
    if not re.fullmatch(rb"[0-9]{13}", moment):
        found.add("seconds_not_milliseconds" if re.fullmatch(rb"[0-9]{10}", moment) else "bad_format")
    sums = {hashlib.md5((APP_ID + token).encode() + digest + moment).hexdigest().encode() for token in (TOKEN, OLD_TOKEN)}
    if checksum.lower() not in sums:
        found.add("checksum_mismatch")
    if hashlib.md5(body).hexdigest().encode() != digest.lower():
        found.add("body_mismatch")
    return found
