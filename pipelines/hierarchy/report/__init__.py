"""The page that shows a build: its map of names, its words explained, and the stage that writes it."""
