"""What several transports need."""
