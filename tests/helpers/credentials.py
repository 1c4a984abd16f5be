"""Invented credentials, of the length that the platform gives."""

from rbim import Credentials

APP_ID = "aaf98f8947b5d6c80147b8a2b7c30123"
TOKEN = "7f0c4b9de2a14f5c8b3e6d1a90c2f4e8"
CREDENTIALS = Credentials(app_id=APP_ID, app_token=TOKEN)
OTHER_APP = "bbf98f8947b5d6c80147b8a2b7c30456"
