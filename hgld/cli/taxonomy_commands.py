"""The verb that draws hierarchies and taxonomies in the terminal: show."""

import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hgld.cli.options import Names, NewFile, json_option
from hgld.cli.output import echo, print_json
from hgld.errors import ConfigError
from hgld.taxonomy.format_names import AUTO, FORMAT_LINES, PARENTS_RULES
from hgld.terminal import is_terminal

if TYPE_CHECKING:
    import numpy as np

    from hgld.hierarchy import Hierarchy
    from hgld.taxonomy.levels import EvenLevels

_WIDTH = 80  # of a drawing that goes to no terminal
_LINES = 200


def show_command() -> click.Command:
    @click.command()
    @click.argument("place", type=click.Path(path_type=Path, exists=True))
    @click.option(
        "--format",
        "kind",
        type=click.Choice([AUTO, *FORMAT_LINES]),
        default=AUTO,
        show_default=True,
        metavar="NAME",
        help=f"Format of the taxonomy, else found out from its content: {', '.join(FORMAT_LINES)}.",
    )
    @click.option("--levels", type=Names(), help="Names of the levels, finest first; of a table, its columns.")
    @click.option(
        "--parents",
        type=click.Choice(PARENTS_RULES),
        default=PARENTS_RULES[0],
        show_default=True,
        help="Classes under several parents: refuse them, keep the first, or the one farthest from the top.",
    )
    @click.option(
        "--cut",
        default="",
        metavar="RULE",
        help="Levels of a tree of uneven depth: root:2,1 (steps below the top), leaves:1,2 (steps above the finest "
        "classes) or ranks:species,family.  [default: all ranks or depths]",
    )
    @click.option("--depth", type=click.IntRange(1), help="Levels to draw, from the coarsest.  [default: all]")
    @click.option(
        "--most", type=click.IntRange(0), default=8, show_default=True, help="Classes to draw below each; 0: all."
    )
    @click.option("--changes", type=NewFile(), help="CSV of every class that the rules changed, to be written.")
    @json_option
    def show(
        place: Path,
        kind: str,
        levels: tuple[str, ...] | None,
        parents: Any,
        cut: str,
        depth: int | None,
        most: int,
        changes: Path | None,
        as_json: bool,
    ) -> None:
        """Draw a hierarchy as a tree: the largest classes first, each with its number of finest classes.

        PLACE is a build's folder, a dataset directory (where images are counted), or a taxonomy in any format that hgld
        reads: an edge list, node-link JSON, WordNet, Open Images, iNaturalist, Darwin Core, a folder tree, ...
        """
        from hgld.taxonomy.formats import read_levels
        from hgld.tree_drawing import tree_data, tree_text

        _refuse_unfinished(place)
        found = read_levels(place, kind, parents=parents, cut=cut, levels=levels or ())
        if changes is not None:
            found.changes.write_csv(changes)
        counts = _items(place, found.hierarchy)
        drawn: dict[str, Any] = {"depth": depth, "most": most or None, "counts": counts}
        if as_json:
            facts = {
                "place": str(place),
                "format": found.taxonomy.format,
                "cut": found.cut,
                "parents": found.parents,
                "levels": dict(zip(found.hierarchy.levels, found.hierarchy.num_classes, strict=True)),
                "counted": "finest classes" if counts is None else "images",
                "counts": found.counts,
            }
            print_json(facts | {"tree": tree_data(found.hierarchy, **drawn)})
            return
        terminal = is_terminal(sys.stdout)
        width = shutil.get_terminal_size((_WIDTH, 24)).columns if terminal else _WIDTH
        echo(tree_text(found.hierarchy, lines=_LINES if most else None, width=width, **drawn))
        echo("\n" + "\n".join(textwrap.fill(line, width) for line in _told(found, counts is not None)))

    return show


def _refuse_unfinished(place: Path) -> None:
    """Refuse the folder of a build or dataset that has no hierarchy yet: its folders are no classes."""
    if (place / "hierarchy.parquet").is_file():
        return
    for mark, what in ((".hgld-build", "build"), ("dataset.json", "dataset"), ("stages", "build")):
        if (place / mark).exists():
            raise ConfigError(f"{place} holds a {what} without hierarchy.parquet. Finish it with the command it is of.")


def _items(place: Path, hierarchy: "Hierarchy") -> "dict[str, np.ndarray] | None":
    """Count the images of every class of a dataset directory; None elsewhere."""
    from hgld.data.format import INDEX, MANIFEST

    if not (place / INDEX).is_file() or not (place / MANIFEST).is_file():
        return None
    from hgld.data.index import read_index

    index, levels = read_index(place / INDEX, leave_out=("sha256",))
    return hierarchy.counts(index.select(levels).to_numpy()) if levels == hierarchy.levels else None


def _told(found: "EvenLevels", images: bool) -> list[str]:
    """Return what was read, and what the rules did, in sentences."""
    counted = "images" if images else f"the classes of the level {found.hierarchy.levels[0]!r}"
    read = f"{found.taxonomy.format}: {len(found.taxonomy):,} classes"
    lines = [f"{read}; levels by {found.cut}; numbers count {counted}."]
    if found.counts:
        lines.append("; ".join(f"{what}: {number:,}" for what, number in found.counts.items()) + ".")
    return lines
