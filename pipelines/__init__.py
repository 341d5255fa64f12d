"""The stages that make datasets. They meet only on disk: see docs/stages.md for what each reads and writes."""
