"""Names: tables of them read, cleaned, with the classes that taxonomies give them."""
