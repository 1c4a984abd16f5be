"""Help pages, and the examples in them."""
