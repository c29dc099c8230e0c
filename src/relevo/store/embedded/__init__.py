"""The embedded server: one real Valkey or Redis per data directory."""
