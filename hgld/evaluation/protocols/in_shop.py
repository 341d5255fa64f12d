"""DeepFashion In-Shop Clothes Retrieval: queries against a gallery of the same items, as its partition file says.

Liu, Luo, Qiu, Wang, Tang: "DeepFashion: Powering Robust Clothes Recognition and Retrieval with Rich Annotations", CVPR
2016: 14,218 queries, 12,612 gallery images. Evaluated by :func:`hgld.evaluate` with a gallery.
"""

from pathlib import Path

import polars as pl

from hgld.errors import TableError, quoted
from hgld.evaluation.protocols.trapezoid import read_list_lines

_HEADER = ["image_name", "item_id", "evaluation_status"]
_SPLITS = ("train", "query", "gallery")


def read_in_shop(path: str | Path) -> pl.DataFrame:
    """Read ``list_eval_partition.txt``.

    Returns:
        image (text), item (text, ``id_00000001``), label (Int32, the rank of the item's name), split (``train``,
        ``query`` or ``gallery``), in the order of the file.

    Raises:
        TableError: a line that is not an image, an item and a split, or fewer lines than the first one says.
    """
    file = Path(path)
    lines = read_list_lines(file)
    if len(lines) < 2 or lines[1] != _HEADER:
        raise TableError(f"{file}: expected the number of images, then the header {' '.join(_HEADER)}.")
    rows = [words for words in lines[2:] if words]
    if lines[0] != [str(len(rows))]:
        raise TableError(
            f"{file}: {len(rows)} images; its first line says {quoted(' '.join(lines[0]))}. Is the file whole?"
        )
    for number, row in enumerate(rows, start=3):
        if len(row) != len(_HEADER) or row[2] not in _SPLITS:
            raise TableError(
                f"{file}: row {number} is {quoted(' '.join(row)[:80])}; expected an image, an item and a split."
            )
    schema = {"image": pl.String, "item": pl.String, "split": pl.String}
    table = pl.DataFrame(rows, schema=schema, orient="row")
    label = (pl.col("item").rank("dense") - 1).cast(pl.Int32).alias("label")
    return table.with_columns(label).select("image", "item", "label", "split")
