"""The pooler: keeps machines in stock, makes others on demand, looks after them and ends them."""
