"""The page on which annotators finish a build's hierarchy: its model, its journal of decisions, its server."""
