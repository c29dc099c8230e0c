"""Where the vectors of documents are kept."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing

#: A file in a real installation; by default each process forgets them.
PLACE = os.environ.get("NOOBLE4_VECTORS", ":memory:")


def store(document_id: str, vectors: list[list[float]]) -> int:
    """Store the vectors of a document in place of those it had, so that storing them twice does no harm: how many."""
    with closing(sqlite3.connect(PLACE)) as database, database:
        database.execute("CREATE TABLE IF NOT EXISTS vectors (document, part, vector, PRIMARY KEY (document, part))")
        database.execute("DELETE FROM vectors WHERE document = ?", (document_id,))
        rows = [(document_id, part, json.dumps(vector)) for part, vector in enumerate(vectors)]
        database.executemany("INSERT INTO vectors VALUES (?, ?, ?)", rows)
    return len(rows)
