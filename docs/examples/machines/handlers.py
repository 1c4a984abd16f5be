"""What becomes of each event: replace this with your own."""  # noqa: INP001  # a folder of examples

import sys

from rbim.callbacks import Event, Router

router = Router()


@router.fallback
async def show(event: Event) -> None:
    """Print an event."""
    sys.stdout.write(f"{event.from_account} {event.msg_type} {event.body or ''}\n")
    sys.stdout.flush()
