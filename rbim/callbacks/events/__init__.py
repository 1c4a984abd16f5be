"""What the platform sends, as typed events."""
