"""The verb that looks for wrong labels: audit."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hgld.cli.embed_commands import (
    open_embedder,
    refuse_view_options,
    say_reduced,
    source_options,
    take_sources,
    take_view_options,
    view_options,
)
from hgld.cli.options import FOLDER, Names, json_option, reading_options
from hgld.cli.output import echo, print_json, progress_bars

if TYPE_CHECKING:
    from hgld.audit.audit import Audit
    from hgld.audit.inputs import Audited
    from hgld.pipelines.stage import Progress
    from hgld.training.models.networks import Network

_MOST_SHOWN = 10


def audit_command() -> click.Command:
    any_file = click.Path(path_type=Path, dir_okay=False)

    @click.command()
    @click.option("--embeddings", type=any_file, help="Embeddings: .npy, .safetensors or .parquet.")
    @click.option(
        "--labels",
        type=any_file,
        help="Their labels, one row an embedding: .parquet or .csv. [default: X.labels.parquet beside X.npy]",
    )
    @click.option(
        "--levels", type=Names(), help="Columns of the labels, finest first. [default: all but key and split]"
    )
    @source_options()
    @click.option("--data", help="The dataset: what the model embeds, or the labels and pictures of --embeddings.")
    @click.option(
        "--out", type=FOLDER, required=True, help="Folder of the page, exclude.csv, decisions.yaml and audit.json."
    )
    @click.option(
        "--probability",
        type=click.FloatRange(0, 1, min_open=True),
        default=0.5,
        show_default=True,
        help="From which a finding is listed.",
    )
    @view_options
    @click.option("--device", help="cpu, cuda, ...; default: a GPU when there is one.")
    @reading_options()
    @json_option
    def audit(
        embeddings: Path | None,
        labels: Path | None,
        levels: tuple[str, ...] | None,
        data: str | None,
        out: Path,
        probability: float,
        device: str | None,
        as_json: bool,
        **given: Any,
    ) -> None:
        """Find images that are probably mislabelled, classes that are one, two or misplaced, and copies across splits.

        By the nearest images at every level, a model of the classes that leaves each image out, and the tree. OUT gets
        a page to accept and refuse findings on; exclude.csv, which hgld build-shards --exclude takes; decisions.yaml,
        which hgld build-hierarchy --decisions takes; labels.parquet, the probability of every label; and audit.json.
        Nothing else is changed.
        """
        from hgld.audit.audit import AuditOptions
        from hgld.audit.page import write_audit
        from hgld.pipelines.check.audit_decisions import HEADER, decision_texts

        sources = take_sources(given)
        with progress_bars() as progress:
            if sources:
                if embeddings is not None or labels is not None or levels is not None or data is None:
                    raise click.UsageError("a model goes with --data, without --embeddings, --labels and --levels.")
                audited = _embedded(sources, data, device, take_view_options(given), progress)
                if audited is None:
                    return
            else:
                refuse_view_options(given)
                audited = _read(embeddings, labels, levels, data)
            found = audited.audit(AuditOptions(probability=probability, progress=progress))
            named = {"dataset": audited.dataset.manifest.name} if audited.dataset is not None else {}
            named |= {"embeddings": embeddings.name} if embeddings is not None else {}
            named |= {"model": sources[0].name} if sources else {}
            files = write_audit(out, found, decision_texts(found.classes, found.levels), HEADER, audited.dataset, named)
        if as_json:
            print_json(found.to_dict() | {"files": files})
        else:
            echo(_text(found, files))

    return audit


def _read(embeddings: Path | None, labels: Path | None, levels: tuple[str, ...] | None, data: str | None) -> "Audited":
    if embeddings is None:
        raise click.UsageError("missing --embeddings, with --labels or --data; or give a model and --data.")
    from hgld.audit.inputs import Audited

    if data is None:
        return Audited.of_files(embeddings, labels, levels)
    if levels is not None:
        raise click.UsageError("--levels goes with --labels and without --data: the dataset has its own.")
    from hgld.data.dataset import open_dataset

    return Audited.of_embedded_dataset(embeddings, labels, open_dataset(data))


def _embedded(
    sources: "list[Path | Network]", data: str, device: str | None, options: dict[str, Any], progress: "Progress"
) -> "Audited | None":
    """Return the readable items of a dataset; None on all processes of torchrun but the main one."""
    from hgld.audit.inputs import Audited
    from hgld.data.dataset import open_dataset

    if len(sources) > 1:
        raise click.UsageError("--checkpoint and --model are both given; one of them says what embeds.")
    dataset = open_dataset(data)
    with open_embedder(sources[0], device, options, data) as embedder:
        embedded = embedder.embed_readable(dataset, progress)
        if not embedder.processes.is_main:
            return None
    say_reduced(embedder.view_facts([dataset]))
    if embedded.faults:
        first = embedded.faults[0]
        count = len(embedded.faults)
        echo(f"images that cannot be read and are left out: {count}; {first.where}: {first.reason}", err=True)
    return Audited.of_dataset(embedded.vectors, embedded.dataset)


def _text(found: "Audit", files: dict[str, str]) -> str:
    lines = [f"{found.judged:,} of {len(found.keys):,} images judged; wrong labels, estimated with 95% intervals:"]
    lines += [
        f"  {row['level']}: {row['rate']:.2%} ({row['low']:.2%} to {row['high']:.2%})"
        for row in found.rates.iter_rows(named=True)
    ]
    lines.append(f"images with a probably wrong label: {len(found.images):,}")
    lines += [
        f"  {row['probability']:.2f} {row['key']}: {row['level']} {row['given']}, probably {row['proposed']}"
        for row in found.images.head(_MOST_SHOWN).iter_rows(named=True)
    ]
    lines.append(f"classes: {len(found.classes):,}")
    said = {"one": "{class} and {other} are one", "two": "{class} is two", "parent": "{class} belongs under {other}"}
    lines += [
        f"  {row['probability']:.2f} {row['level']}: {said[row['kind']].format(**row)}"
        for row in found.classes.head(_MOST_SHOWN).iter_rows(named=True)
    ]
    lines.append(f"copies across splits: {len(found.copies):,}")
    lines += [
        f"  {row['probability']:.2f} {row['split']} {row['key']} = {row['other_split']} {row['other_key']}"
        for row in found.copies.head(_MOST_SHOWN).iter_rows(named=True)
    ]
    return "\n".join([*lines, *found.notes, f"the page: {files['page']}"])
