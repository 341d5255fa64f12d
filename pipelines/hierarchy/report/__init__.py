"""The report page of a build, its glossary, and the stage that writes it."""
