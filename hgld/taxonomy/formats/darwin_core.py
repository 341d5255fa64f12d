"""Darwin Core taxa: tables of GBIF, iNaturalist and museums, by parent ids or with a column a rank.

With ``taxonID`` and ``parentNameUsageID`` each row is a class; synonyms (``acceptedNameUsageID`` is another taxon) are
further names of the accepted one. Without parents the columns kingdom, phylum, class, order, family and genus lead to
``scientificName``.
"""

from hgld.errors import HierarchyError, TableError
from hgld.tables import csv_text
from hgld.taxonomy.formats.document import Document
from hgld.taxonomy.formats.ranked_chain import BETWEEN, RANKS, add_chain
from hgld.taxonomy.graph import Taxonomy, TaxonomyBuilder, short

FORMAT = "darwin-core"
_BY_ID = ("taxonID", "parentNameUsageID", "acceptedNameUsageID", "scientificName", "taxonRank", "vernacularName")


def is_darwin_core(document: Document) -> bool:
    """Tell whether the document is a table with Darwin Core's names of taxa."""
    return "scientificName" in document.columns or {"taxonID", "parentNameUsageID"} <= set(document.columns)


def read_darwin_core(document: Document) -> Taxonomy:
    """Read a table of taxa, by comma or tab.

    Raises:
        TableError: it is not such a table.
        HierarchyError: an id is there twice, a parent is not there, or parents form a cycle.
    """
    if not is_darwin_core(document):
        raise TableError(
            f"{document.path} lacks the column 'scientificName'; found {', '.join(map(short, document.columns[:20]))}."
        )
    if {"taxonID", "parentNameUsageID"} <= set(document.columns):
        return _by_parents(document)
    return _by_ranks(document)


def _by_parents(document: Document) -> Taxonomy:
    made = TaxonomyBuilder(str(document.path), FORMAT)
    synonyms: list[tuple[int, str, str]] = []
    for line, (taxon, parent, accepted, name, rank, common) in document.select(_BY_ID):
        if accepted and accepted != taxon:
            synonyms.append((line, accepted, name))
            continue
        made.add(taxon, name, rank, line)
        if common:
            made.call(common, taxon)
        if parent:
            made.link(taxon, parent, line)
    for line, accepted, name in synonyms:
        if accepted not in made:
            raise HierarchyError(
                f"{document.path}, line {line:,}: a synonym of {short(accepted)}, which the file does not have. Add "
                "it, or remove this row."
            )
        if name:
            made.call(name, accepted)
    made.count("synonyms (further names of other taxa)", len(synonyms))
    return made.finish(declared=True)


def _by_ranks(document: Document) -> Taxonomy:
    made = TaxonomyBuilder(str(document.path), FORMAT)
    for line, (taxon, name, rank, common, *above) in document.select(
        ("taxonID", "scientificName", "taxonRank", "vernacularName", *RANKS)
    ):
        if not name:
            made.count("rows without a scientificName")
            continue
        own = rank.lower() or "species"
        known = above[: RANKS.index(own)] if own in RANKS else above  # a genus's row may repeat itself as its genus
        parent = add_chain(made, RANKS[: len(known)], known, line)
        here = taxon or (f"{parent}{BETWEEN}{name}" if parent else name)
        if own in RANKS and not taxon and here in made:
            continue  # declared by the rows below it
        made.add(here, name, own, line)
        if parent:
            made.link(here, parent, line)
        if common:
            made.call(common, here)
    return made.finish()


def write_darwin_core(taxonomy: Taxonomy) -> str:
    """Return a table of taxa with parent ids.

    Raises:
        HierarchyError: a class has several parents.
    """
    if torn := taxonomy.with_several_parents:
        raise HierarchyError(
            f"{taxonomy.source}: {short(taxonomy.names[torn[0]])} has several parents; Darwin Core has one a taxon."
        )
    rows = [("taxonID", "parentNameUsageID", "scientificName", "taxonRank")]
    for taxon, name, parents, rank in zip(taxonomy.ids, taxonomy.names, taxonomy.parents, taxonomy.ranks, strict=True):
        rows.append((taxon, taxonomy.ids[parents[0]] if parents else "", name, rank or ""))
    return csv_text(rows)
