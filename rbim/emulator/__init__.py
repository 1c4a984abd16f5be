"""The platform in a box, as its interface description tells it."""
