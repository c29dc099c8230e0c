"""One module per product: its job, its enqueue calls, its worker. Each is imported by that product's interpreter."""
