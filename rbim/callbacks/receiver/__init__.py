"""The HTTP side of callbacks: accepts deliveries in time."""
