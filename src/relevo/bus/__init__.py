"""The bus: services that talk to each other through the same queues that jobs run on."""
