"""What is off with a dataset: one row a finding, for people and machines."""

import polars as pl

SCHEMA = pl.Schema(dict.fromkeys(("kind", "split", "shard", "member", "found", "expected"), pl.String))


class Findings:
    """Collects findings in the order in which they are made."""

    def __init__(self) -> None:
        self._parts: list[pl.DataFrame] = []

    def add(
        self,
        kind: str,
        found: object,
        expected: object,
        *,
        split: str | None = None,
        shard: str | None = None,
        member: str | None = None,
    ) -> None:
        """Add one finding.

        Args:
            kind: what to count it by.
            found: what is there.
            expected: what should be there.
            split: where it is, as far as that applies.
            shard: a file of the dataset directory.
            member: key of an item, name of a tar's member, or whatever the table's row is about.
        """
        row = (kind, split, shard, member, str(found), str(expected))
        self._parts.append(pl.DataFrame([row], schema=SCHEMA, orient="row"))

    def add_rows(
        self, rows: pl.DataFrame, kind: str | pl.Expr, found: pl.Expr, expected: pl.Expr | str, member: str = "key"
    ) -> None:
        """Add one finding a row of a table that has the columns split, shard (each if it applies) and ``member``."""
        if not len(rows):
            return
        place = {name: pl.col(name) if name in rows.columns else pl.lit(None) for name in ("split", "shard")}
        self._parts.append(
            rows.select(
                kind=pl.lit(kind) if isinstance(kind, str) else kind,
                **place,
                member=pl.col(member),
                found=found.cast(pl.String),
                expected=pl.lit(expected) if isinstance(expected, str) else expected.cast(pl.String),
            ).cast(SCHEMA)
        )

    def table(self) -> pl.DataFrame:
        """All findings so far (:data:`SCHEMA`)."""
        return pl.concat([pl.DataFrame(schema=SCHEMA), *self._parts])
