"""A teacher that knows nothing: it estimates by the text alone, so that a page's proposals can be foretold."""

from collections.abc import Collection
from dataclasses import dataclass

from hgld.pipelines.hierarchy.review.decisions.grouping import Fate, Grouping

SCREEN = 8


@dataclass(frozen=True)
class MadeProposal:
    kind: str
    group: str
    names: tuple[str, ...]
    wrong: tuple[float, ...]
    items: float
    other: str | None = None
    blocks: tuple[tuple[int, int], ...] = ()


@dataclass
class MadeEstimates:
    place: dict[str, Fate]
    wrong: dict[str, float]
    queue: list[MadeProposal]

    def still_wrong(self) -> tuple[float, float, float]:
        mean = sum(self.wrong.values())
        return mean, mean / 2, mean * 2

    def items_wrong(self) -> tuple[float, float, float]:
        return self.still_wrong()


class MadeTeacher:
    """Names that begin alike as a decided one go where it went; the others stay."""

    def __init__(self, sizes: dict[str, int], kinds: tuple[str, ...] = ("sort", "accept", "place", "merge", "new")):
        self.sizes, self.kinds = sizes, kinds

    def learn(self, grouping: Grouping, *, skipped: Collection[tuple[str, str | None]] = ()) -> MadeEstimates:
        decided = grouping.decided
        live = set(grouping.live())
        begins = {name[:5]: group for name, group in sorted(decided.items()) if group in live}
        place = {name: decided.get(name, begins.get(name[:5], group)) for name, group in grouping.place.items()}
        place = {name: None if grouping.place[name] is None else group for name, group in place.items()}
        wrong = {name: 0.0 if name in decided else 1 / (1 + self.sizes[name]) for name in place}
        return MadeEstimates(place, wrong, self._queue(grouping, place, wrong, skipped))

    def _queue(
        self,
        grouping: Grouping,
        place: dict[str, Fate],
        wrong: dict[str, float],
        skipped: Collection[tuple[str, str | None]],
    ) -> list[MadeProposal]:
        left = sorted(name for name in place if name not in grouping.decided and place[name] is not None)
        queue = []
        if "sort" in self.kinds:
            shown = [name for name in left if (name, grouping.label_of(place[name])) not in skipped]
            for start in range(0, len(shown), SCREEN):
                names = tuple(shown[start : start + SCREEN])
                blocks = tuple((i, min(i + size, len(names))) for size in (2, 4, 8) for i in range(0, len(names), size))
                queue.append(MadeProposal("sort", "", names, self._doubt(names, wrong), 3.5, blocks=blocks))
        by_group: dict[Fate, list[str]] = {}
        for name in left:
            by_group.setdefault(place[name], []).append(name)
        labels = [(grouping.label_of(group), tuple(names)) for group, names in by_group.items()]
        if "accept" in self.kinds:
            queue += [MadeProposal("accept", label, n, self._doubt(n, wrong), 2.0) for label, n in labels]
        (one, _), (other, names) = labels[0] if labels else ("", ()), labels[-1] if labels else ("", ())
        if len(labels) < 2:
            return queue
        given = {"names": names, "wrong": self._doubt(names, wrong), "items": 1.0}
        queue += [MadeProposal("place", one, **given)] if "place" in self.kinds else []
        queue += [MadeProposal("merge", one, other=other, **given)] if "merge" in self.kinds else []
        queue += [MadeProposal("new", "a new one", **given)] if "new" in self.kinds else []
        queue += [MadeProposal("split", "a part", other=other, **given)] if "split" in self.kinds else []
        queue += [MadeProposal("rename", other, other="water", **given)] if "rename" in self.kinds else []
        return queue

    def _doubt(self, names: tuple[str, ...], wrong: dict[str, float]) -> tuple[float, ...]:
        return tuple(wrong[name] for name in names)
