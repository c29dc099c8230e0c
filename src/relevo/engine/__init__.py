"""One job: its values, the decision about its future, and the operations that store, run and settle it."""
