"""Where accepted deliveries are kept: an SQLite file, or memory."""
