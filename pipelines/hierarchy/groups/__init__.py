"""Groups of names: found, or given; how many, what they are called, and how likely a placement is wrong."""
