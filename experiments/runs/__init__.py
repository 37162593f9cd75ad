"""One run: its directory, record, worker process and scores."""
