"""The audit trail: what operators did."""
