"""The files of a Label Studio project: a taxonomy of the classes as its interface, and a task an item.

``config.xml`` is the labelling interface; ``tasks-00000.json`` and on are imported. What the dataset says is a
prediction of every task, what people decided an annotation.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from hgld.errors import ConfigError
from hgld.hierarchy import Hierarchy
from hgld.pipelines.conversion.reviewed import Verdicts

if TYPE_CHECKING:
    from hgld.pipelines.conversion.convert import Conversion, ConvertedItem

MOST_CHOICES = 20_000  # of a taxonomy that a browser still opens
_TASKS_A_FILE = 20_000
_LOCAL = "/data/local-files/?d=data/"  # with LOCAL_FILES_DOCUMENT_ROOT at the folder
_NAME, _ITEM = "classes", "image"
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, 2.2: Char
Tree = dict[str, "Tree"]


def write(folder: Path, conversion: "Conversion") -> None:
    """Write ``config.xml`` and the tasks, see :class:`hgld.pipelines.conversion.convert.Format`; boxes are not told.

    Raises:
        ConfigError: more classes than a browser shows.
    """
    (folder / "config.xml").write_text(config(conversion.hierarchy, conversion.verdicts), encoding="utf-8")
    model = f"hgld: labels of {conversion.facts['name']}"
    tasks, number = [], 0
    at = _LOCAL if conversion.at is None else conversion.at
    for item in conversion.items:
        tasks.append(_task(item, at, model))
        if len(tasks) == _TASKS_A_FILE:
            _write_tasks(folder, number, tasks)
            tasks, number = [], number + 1
    if tasks or not number:
        _write_tasks(folder, number, tasks)


def config(hierarchy: Hierarchy, verdicts: Verdicts | None = None) -> str:
    """Return the labelling interface: a picture, and the classes as a tree from the coarsest level down.

    Raises:
        ConfigError: more than ``MOST_CHOICES`` classes.
    """
    decided = [] if verdicts is None else [*verdicts.of_class.values(), *verdicts.of_item.values()]
    tree: Tree = {}
    for path in [*_paths(hierarchy), *(verdict.path for verdict in decided if verdict.path)]:
        below = tree
        for name in taxonomy_path(path):
            below = below.setdefault(name, {})
    count = _size(tree)
    if count > MOST_CHOICES:
        raise ConfigError(
            f"{count:,} classes are more than the {MOST_CHOICES:,} that a taxonomy in a browser bears. Take the "
            f"coarser levels: --levels {','.join(hierarchy.levels[1:]) or hierarchy.levels[0]}"
        )
    lines = [
        "<View>",
        f'  <Image name="{_ITEM}" value="${_ITEM}"/>',
        f'  <Taxonomy name="{_NAME}" toName="{_ITEM}" maxUsages="1">',
        *_choices(tree, "    "),
        "  </Taxonomy>",
        "</View>",
    ]
    return "\n".join(lines) + "\n"


def taxonomy_path(path: Iterable[str | None]) -> list[str]:
    """Return the names of known classes, coarsest first, each on one line and of characters that XML holds.

    >>> taxonomy_path(["a\\x07 b", None, "c\\nd"])
    ['c d', 'a\ufffd b']
    """
    known = [" ".join(name.split()) for name in path if name is not None]
    return [_NOT_XML.sub("\N{REPLACEMENT CHARACTER}", name) for name in reversed(known)]


def _paths(hierarchy: Hierarchy) -> Iterator[list[str]]:
    """Yield the path of every class; coarser ones have finer classes below them or stand alone."""
    for level, names in enumerate(hierarchy.names):
        for label, name in enumerate(names):
            found, at = [name], label
            for parents, above in zip(hierarchy.parents[level:], hierarchy.names[level + 1 :], strict=True):
                at = int(parents[at]) if at >= 0 else -1
                found += [above[at]] if at >= 0 else []
            yield found


def _size(tree: Tree) -> int:
    return len(tree) + sum(map(_size, tree.values()))


def _choices(tree: Tree, indent: str) -> Iterator[str]:
    for name, below in tree.items():
        yield f"{indent}<Choice value={quoteattr(name)}{'>' if below else '/>'}"
        if below:
            yield from _choices(below, indent + "  ")
            yield f"{indent}</Choice>"


def _task(item: "ConvertedItem", at: str, model: str) -> dict[str, Any]:
    data = {_ITEM: at + quote(item.file), "key": item.key, "split": item.split}
    task: dict[str, Any] = {"data": data}
    if path := taxonomy_path(item.path):
        task["predictions"] = [{"model_version": model, "result": [_answer(path)]}]
    if item.verdict is not None:
        data["decided_by"] = ", ".join(item.verdict.who)
        if item.verdict.path is None:
            task["annotations"] = [{"result": [], "was_cancelled": True}]
        else:
            task["annotations"] = [{"result": [_answer(taxonomy_path(item.verdict.path))]}]
    return task


def _answer(path: list[str]) -> dict[str, Any]:
    return {"from_name": _NAME, "to_name": _ITEM, "type": "taxonomy", "value": {"taxonomy": [path]}}


def _write_tasks(folder: Path, number: int, tasks: list[dict[str, Any]]) -> None:
    text = "[\n" + ",\n".join(json.dumps(task, ensure_ascii=False) for task in tasks) + "\n]\n"
    (folder / f"tasks-{number:05d}.json").write_text(text, encoding="utf-8")
