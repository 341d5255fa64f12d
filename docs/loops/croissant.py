import os

os.environ["CROISSANT_CACHE"] = (
    "unpacked"  # mlcroissant unpacks tars with equal names into one folder; use a folder per dataset
)
import mlcroissant

dataset = mlcroissant.Dataset("shards/croissant.json")
record = next(iter(dataset.records("images")))
print({field.removeprefix("images/"): value for field, value in record.items()})
