"""The files of a Label Studio project: a taxonomy of the classes as its interface, and a task an item or a name.

``config.xml`` is the labelling interface; ``tasks-00000.json`` and on are imported. What the dataset says is a
prediction of every task, what people decided an annotation.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

from hgld.errors import ConfigError
from hgld.hierarchy import Hierarchy

from .reviewed import Verdict, Verdicts, path_of

if TYPE_CHECKING:
    from .convert import Conversion

MOST_CHOICES = 20_000  # of a taxonomy that a browser still opens
_TASKS_A_FILE = 20_000
_LOCAL = "/data/local-files/?d=data/"  # with LOCAL_FILES_DOCUMENT_ROOT at the folder
_NAME, _ITEM, _TEXT = "classes", "image", "text"
_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, 2.2: Char
Tree = dict[str, "Tree"]


def write(folder: Path, conversion: "Conversion") -> None:
    """Write ``config.xml`` and the tasks, see :class:`hgld.pipelines.conversion.convert.Format`; boxes are not told.

    Raises:
        ConfigError: more classes than a browser shows.
    """
    decided = _decided(conversion.verdicts)
    (folder / "config.xml").write_text(config(conversion.hierarchy, decided), encoding="utf-8")
    at = _LOCAL if conversion.at is None else conversion.at
    model = f"hgld: labels of {conversion.facts['name']}"
    tasks = (
        _task({_ITEM: at + quote(item.file), "key": item.key, "split": item.split}, item.path, item.verdict, model)
        for item in conversion.items
    )
    _write_tasks(folder, tasks)


def write_names(folder: Path, hierarchy: Hierarchy, verdicts: Verdicts | None, source: str) -> None:
    """Write ``config.xml`` and a task of text a name: the finest classes, without pictures.

    Args:
        folder: empty.
        hierarchy: the names as its finest level; what they are put into are the classes above.
        verdicts: of people; None where none were given.
        source: what the predictions are called after.

    Raises:
        ConfigError: one level alone, or more classes above the names than a browser shows.
    """
    if len(hierarchy.levels) < 2:
        level = ", ".join(hierarchy.levels)
        raise ConfigError(f"{source} has one level, {level}: there is no class to put its names into.")
    above = hierarchy.restrict(hierarchy.levels[1:])
    decided = [_above(verdict) for verdict in _decided(verdicts)]
    (folder / "config.xml").write_text(config(above, decided, _TEXT), encoding="utf-8")
    model = f"hgld: groups of {source}"

    def tasks() -> Iterator[dict[str, Any]]:
        labels = hierarchy.expand(range(len(hierarchy.names[0])))
        for label, (name, row) in enumerate(zip(hierarchy.names[0], labels.tolist(), strict=True)):
            verdict = None if verdicts is None else verdicts.of_class.get(label)
            given = None if verdict is None else _above(verdict)
            yield _task({_TEXT: name}, path_of(hierarchy, row)[1:], given, model, of=_TEXT)

    _write_tasks(folder, tasks())


def _decided(verdicts: Verdicts | None) -> list[Verdict]:
    return [] if verdicts is None else [*verdicts.of_class.values(), *verdicts.of_item.values()]


def _above(verdict: Verdict) -> Verdict:
    """Return what was decided about the classes above a name."""
    return Verdict(None if verdict.path is None else verdict.path[1:], verdict.who)


def config(hierarchy: Hierarchy, decided: Iterable[Verdict] = (), of: str = _ITEM) -> str:
    """Return the labelling interface: a picture or a text, and the classes as a tree from the coarsest level down.

    Args:
        hierarchy: of the classes.
        decided: verdicts whose classes are offered too.
        of: ``image`` or ``text``.

    Raises:
        ConfigError: more than ``MOST_CHOICES`` classes.
    """
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
        f'  <{of.capitalize()} name="{of}" value="${of}"/>',
        f'  <Taxonomy name="{_NAME}" toName="{of}" maxUsages="1">',
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


def _task(
    data: Mapping[str, str], path: Iterable[str | None], verdict: Verdict | None, model: str, of: str = _ITEM
) -> dict[str, Any]:
    task: dict[str, Any] = {"data": {**data}}
    if known := taxonomy_path(path):
        task["predictions"] = [{"model_version": model, "result": [_answer(known, of)]}]
    if verdict is not None:
        task["data"]["decided_by"] = ", ".join(verdict.who)
        if verdict.path is None:
            task["annotations"] = [{"result": [], "was_cancelled": True}]
        else:
            known = taxonomy_path(verdict.path)
            task["annotations"] = [{"result": [_answer(known, of)] if known else []}]
    return task


def _answer(path: list[str], of: str) -> dict[str, Any]:
    return {"from_name": _NAME, "to_name": of, "type": "taxonomy", "value": {"taxonomy": [path]}}


def _write_tasks(folder: Path, tasks: Iterable[Mapping[str, Any]]) -> None:
    """Write files of ``_TASKS_A_FILE`` tasks each; an empty one where there are none."""
    coming, number = iter(tasks), 0
    while (some := list(islice(coming, _TASKS_A_FILE))) or not number:
        text = "[\n" + ",\n".join(json.dumps(task, ensure_ascii=False) for task in some) + "\n]\n"
        (folder / f"tasks-{number:05d}.json").write_text(text, encoding="utf-8")
        number += 1
