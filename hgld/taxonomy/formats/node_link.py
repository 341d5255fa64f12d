"""Node-link JSON, as ``networkx.node_link_data`` writes it: nodes with ids, edges with source and target.

A link may lead down, from parent to child, as in networkx's own trees (:data:`DOWN`), or up, as "is a" does
(:data:`UP`). Where the file does not say so, it is seen from what has several of: in a tree no child has two parents.
"""

import json
from typing import Any

from hgld.errors import HierarchyError, SchemaError
from hgld.taxonomy.formats.document import Document, text_of
from hgld.taxonomy.graph import Taxonomy, TaxonomyBuilder, short

DOWN, UP = "node-link", "node-link-up"
_SAID = {"down": DOWN, "up": UP}


def is_node_link(document: Document) -> bool:
    """Tell whether the document is a JSON object with nodes and edges (or links)."""
    data = document.json if document.looks_like_json else None
    return isinstance(data, dict) and "nodes" in data and ("edges" in data or "links" in data)


def direction_of(document: Document) -> str:
    """Return the direction of a document's links: as the file says, or as it is seen.

    Raises:
        SchemaError: it is not node-link JSON.
        HierarchyError: the direction is neither said nor to be seen.
    """
    data, where = document.json, str(document.path)
    graph = data.get("graph")
    said = graph.get("links_lead") if isinstance(graph, dict) else None
    return _SAID.get(str(said)) or _seen(_pairs(data, where), where)


def read_node_link(document: Document, direction: str) -> Taxonomy:
    """Read node-link JSON.

    Args:
        document: the file.
        direction: :data:`DOWN` or :data:`UP`.

    Raises:
        SchemaError: it is not node-link JSON of a directed graph.
        HierarchyError: a node is missing or there twice, or links form a cycle.
    """
    data = document.json
    where = str(document.path)
    if not isinstance(data, dict) or not isinstance(data.get("nodes"), list):
        raise SchemaError(f"{where}: expected a JSON object with a list of nodes, as networkx.node_link_data gives it.")
    if data.get("directed") is False:
        raise SchemaError(f"{where}: the graph is undirected; expected links between child and parent (a DiGraph).")
    made = TaxonomyBuilder(where, direction, "entry")
    for number, node in enumerate(data["nodes"], 1):
        if not isinstance(node, dict) or "id" not in node:
            raise SchemaError(f"{where}: node {number:,} is {short(str(node))}; expected an object with an id.")
        name, rank = text_of(node.get("name", node.get("label"))), text_of(node.get("rank"))
        made.add(_id(node["id"], f"{where}: node {number:,}"), name, rank or None, row=number)
    for number, (source, target) in enumerate(_pairs(data, where), 1):
        made.link(*((target, source) if direction == DOWN else (source, target)), number)
    return made.finish(declared=True)


def write_node_link(taxonomy: Taxonomy) -> str:
    """Return the text of node-link JSON, with links from parent to child under "edges"."""
    nodes = [
        {"id": i, "name": n, **({"rank": r} if r else {})}
        for i, n, r in zip(taxonomy.ids, taxonomy.names, taxonomy.ranks, strict=True)
    ]
    edges = [
        {"source": taxonomy.ids[parent], "target": child}
        for child, parents in zip(taxonomy.ids, taxonomy.parents, strict=True)
        for parent in parents
    ]
    graph = {"directed": True, "multigraph": False, "graph": {"links_lead": "down"}, "nodes": nodes, "edges": edges}
    return json.dumps(graph, ensure_ascii=False, indent=1) + "\n"


def _id(value: Any, where: str) -> str:
    """Return the text of a node's id; networkx writes tuples as lists."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool | dict) or (isinstance(value, list) and any(map(_nested, value))):
        raise SchemaError(f"{where} has the id {short(str(value))}; expected text or a number.")
    return json.dumps(value, ensure_ascii=False)


def _nested(value: Any) -> bool:
    return isinstance(value, dict | list)


def _pairs(data: dict[str, Any], where: str) -> list[tuple[str, str]]:
    edges = data.get("edges", data.get("links"))
    if not isinstance(edges, list):
        raise SchemaError(f"{where}: expected a list of edges (or links); found {type(edges).__name__}.")
    pairs = []
    for number, edge in enumerate(edges, 1):
        if not isinstance(edge, dict) or not {"source", "target"} <= edge.keys():
            raise SchemaError(f"{where}: edge {number:,} is {short(str(edge))}; expected source and target.")
        pairs.append(tuple(_id(edge[end], f"{where}: edge {number:,}") for end in ("source", "target")))
    return pairs


def _seen(pairs: list[tuple[str, str]], where: str) -> str:
    """Return the direction of links in which no class has several parents."""
    distinct = set(pairs)
    several_in = len({target for _, target in distinct}) < len(distinct)
    several_out = len({source for source, _ in distinct}) < len(distinct)
    if several_in == several_out and distinct:
        raise HierarchyError(
            f"{where}: its links may lead from parent to child or from child to parent; the file does not say, and "
            f'both are possible. Name the format: {DOWN} (down, as in networkx\'s trees) or {UP} (up, "is a").'
        )
    return UP if several_in else DOWN
