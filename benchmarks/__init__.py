"""What the SDK costs, beside what else one could use."""
