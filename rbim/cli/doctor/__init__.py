"""``rbim doctor``: check the installation, the configuration, the way to the platform, the clock and the credentials."""
