"""Folder trees: a folder a class, its subfolders the classes below it; files are not looked at."""

import os
from pathlib import Path

from hgld.errors import HierarchyError, StorageError
from hgld.taxonomy.formats.document import Document
from hgld.taxonomy.graph import MOST_STEPS, Taxonomy, TaxonomyBuilder, short

FORMAT = "folders"
_LONGEST_NAME = 255  # bytes, on all usual file systems


def read_folders(document: Document) -> Taxonomy:
    """Read the folders below a folder; hidden ones and links to folders are left out and counted.

    Raises:
        HierarchyError: there are none, or too many or too deep.
    """
    if not document.is_folder:
        raise HierarchyError(f"{document.path} is a file; expected a folder whose subfolders are classes.")
    made = TaxonomyBuilder(str(document.path), FORMAT, "folder")
    waiting = [(document.path, "", 0)]
    while waiting:
        place, above, depth = waiting.pop()
        if depth > MOST_STEPS:
            raise HierarchyError(f"{place} lies deeper than {MOST_STEPS:,} folders; that is no taxonomy.")
        below = []
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.is_symlink() and entry.is_dir():
                    made.count("links to folders")
                elif entry.is_dir(follow_symlinks=False) and entry.name.startswith("."):
                    made.count("hidden folders")
                elif entry.is_dir(follow_symlinks=False):
                    below.append(entry.name)
        for name in sorted(below):
            here = f"{above}/{name}" if above else name
            made.add(here, name, row=len(made) + 1)
            if above:
                made.link(here, above, len(made))
            waiting.append((place / name, here, depth + 1))
    return made.finish()


def write_folders(taxonomy: Taxonomy, folder: Path) -> None:
    """Make a folder for each class inside ``folder``, which exists.

    Raises:
        HierarchyError: a class has several parents, or a name cannot be a folder's.
        StorageError: a folder cannot be made.
    """
    places: dict[int, Path] = {}
    for place in taxonomy.order.tolist():
        name, parents = taxonomy.names[place], taxonomy.parents[place]
        allowed = name.isprintable() and "/" not in name and "\\" not in name and not name.startswith(".")
        if len(parents) > 1 or not allowed or len(name.encode()) > _LONGEST_NAME:
            raise HierarchyError(
                f"{taxonomy.source}: {short(name)} has several parents, or a name that no folder can have. Write an "
                "edge list."
            )
        places[place] = (places[parents[0]] if parents else folder) / name
        try:
            places[place].mkdir()
        except OSError as error:
            raise StorageError(f"{places[place]} cannot be made ({error.strerror}).") from error
