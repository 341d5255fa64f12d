"""Evidence about names: rows of numbers, and how much each kind counts."""
