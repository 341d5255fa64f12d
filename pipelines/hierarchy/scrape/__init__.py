"""The scrape stage: categories of Commons, their Wikidata items, a store of answers, a status for each category."""
