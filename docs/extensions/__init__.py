"""Sphinx extensions for generated parts of the site: options, recipes, dataset cards."""
