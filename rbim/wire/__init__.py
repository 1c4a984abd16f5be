"""Values to bytes and back: JSON documents, their quirks, the signature of requests. No input or output."""
