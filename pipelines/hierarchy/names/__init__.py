"""Names: reading and cleaning their tables, and finding their classes in taxonomies."""
