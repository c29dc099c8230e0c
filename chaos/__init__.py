"""What takes long: faults in real processes with the product's default settings, and how long recovery takes."""
