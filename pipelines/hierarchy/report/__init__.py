"""The page that shows a build: its pictures, its words explained, and the stage that writes it."""
