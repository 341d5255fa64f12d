"""The page that shows a build, its words explained, and the stage that writes it."""
