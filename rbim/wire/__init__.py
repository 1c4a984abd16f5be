"""The wire format: operations to requests, responses to answers, signatures. Nothing here does I/O."""
