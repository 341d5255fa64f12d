"""Groups of names, found or predefined: their number, their labels, and error probabilities of placements."""
