"""Explanations of refused deliveries."""
