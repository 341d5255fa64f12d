"""The scrape stage: titles to Commons, Commons to Wikidata, answers kept in a store, one status a category."""
