"""``rbim emulator``: the emulated platform as a server, and the commands for one that runs."""
