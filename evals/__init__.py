"""Scorers: suites of tasks that turn a subject (embedder, generator or search model) into scores with provenance."""

import os
import tempfile
from pathlib import Path

# mteb makes a result cache while it is imported, by default in the user's home. Ours are kept by `evals.score_store`,
# so an empty folder among the temporary files is all that mteb gets, unless the user has named one.
os.environ.setdefault("MTEB_CACHE", str(Path(tempfile.gettempdir()) / "unified_lm-mteb"))
