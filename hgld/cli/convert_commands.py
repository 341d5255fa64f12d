"""The verb that writes a dataset for other tools: convert."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hgld.cli.options import EXISTING_FILE, Names, json_option
from hgld.cli.output import echo, print_json, progress_bars

if TYPE_CHECKING:
    from hgld.hierarchy import Hierarchy
    from hgld.pipelines.hierarchy.review.decisions.agreement import Settlement

_MOST_NAMED = 5
_TOOLS = ("fiftyone", "label-studio")
_NEXT = {
    "fiftyone": "Next, in Python: fiftyone.Dataset.from_dir(dataset_dir={out!r}, "
    "dataset_type=fiftyone.types.FiftyOneDataset)",
    "label-studio": "Next: a project with {out}/config.xml as its labelling interface; import the tasks.",
}


def convert_command() -> click.Command:
    @click.command()
    @click.argument("data", metavar="DATASET")
    @click.option("--to", "tool", type=click.Choice(_TOOLS), required=True, help="The tool.")
    @click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        required=True,
        help="New or empty folder to write; an earlier conversion there is replaced.",
    )
    @click.option("--split", help="One split alone.  [default: all]")
    @click.option("--levels", type=Names(), help="Some levels alone, finest first.  [default: all]")
    @click.option(
        "--at",
        metavar="PLACE",
        help="Where the pictures lie already, under their keys: for FiftyOne a folder, for Label Studio what stands "
        "before KEY.jpg, as https://HOST/pictures/.  [default: they are written to OUT/data]",
    )
    @click.option(
        "--decisions",
        type=EXISTING_FILE,
        multiple=True,
        help="File of decisions about the classes (hgld review, hgld audit), applied and shown; may be repeated.",
    )
    @json_option
    def convert(
        data: str,
        tool: str,
        out: Path,
        split: str | None,
        levels: tuple[str, ...] | None,
        at: str | None,
        decisions: tuple[Path, ...],
        as_json: bool,
    ) -> None:
        """Write a dataset for FiftyOne (a field a level) or Label Studio (a taxonomy).

        With decisions, what people decided stands beside what the dataset says: in FiftyOne as fields reviewed_LEVEL
        and decided_by, in Label Studio as annotations beside the predictions. Of the folder of a build, which has no
        pictures, the names go to Label Studio as texts.
        """
        from hgld.data.dataset import open_dataset
        from hgld.hierarchy import Hierarchy
        from hgld.pipelines.conversion.convert import convert as write
        from hgld.pipelines.conversion.convert import convert_names
        from hgld.pipelines.conversion.reviewed import verdicts
        from hgld.pipelines.hierarchy.review.decisions.decision_files import read_decisions

        names = _names_of(Path(data), levels)
        if names is not None and (split or at is not None):
            raise click.UsageError(f"{data} holds names and no pictures: leave --split and --at out.")
        given = open_dataset(data, split, levels=levels) if names is None else names
        hierarchy = given if isinstance(given, Hierarchy) else given.hierarchy
        decided = verdicts(hierarchy, read_decisions(decisions)) if decisions else None
        if isinstance(given, Hierarchy):
            made = convert_names(given, out, tool, source=data, verdicts=decided)
        else:
            with progress_bars() as progress:
                made = write(given, out, tool, at=at, verdicts=decided, progress=progress)
        fates = {} if decided is None else _fates(decided.settlement)
        if as_json:
            print_json({"out": str(out), "tool": tool, **vars(made), "decisions": fates})
            return
        if names is not None:
            echo(f"{out}: {made.items:,} names, without pictures")
        else:
            echo(f"{out}: {made.items:,} items; {made.pictures:,} pictures written ({made.picture_bytes:,} bytes)")
        if decided is not None:
            echo(f"decisions: {', '.join(f'{number} {fate}' for fate, number in fates.items())}")
            echo(f"{made.decided:,} items were decided about, {made.dropped:,} of them dropped")
            if made.elsewhere:
                echo(f"{made.elsewhere:,} items that were decided about one by one are not among these")
            for miss in decided.settlement.unmatched[:_MOST_NAMED]:
                echo(f"{miss.entry.place} fits nothing: {miss.reason}")
        echo(_NEXT[tool].format(out=str(out)))

    return convert


def _names_of(build: Path, levels: tuple[str, ...] | None) -> "Hierarchy | None":
    """Return the hierarchy of a build's folder; None where it is none."""
    from hgld.data.format import HIERARCHY, INDEX, MANIFEST
    from hgld.hierarchy import Hierarchy

    if not (build / HIERARCHY).is_file() or any((build / name).is_file() for name in (INDEX, MANIFEST)):
        return None
    found = Hierarchy.from_parquet(build / HIERARCHY)
    return found.restrict(levels) if levels else found


def _fates(settlement: "Settlement") -> dict[str, int]:
    fates = ("applied", "withheld", "overruled", "unmatched", "conflicts")
    return {fate: len(getattr(settlement, fate)) for fate in fates}
