"""Report of a job: read from its journal, shown as text, JSON, CSV or a picture."""
