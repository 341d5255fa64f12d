import os

os.environ["CROISSANT_CACHE"] = "unpacked"  # mlcroissant unpacks tars of one name into one folder: one for each dataset
import mlcroissant

dataset = mlcroissant.Dataset("shards/croissant.json")
record = next(iter(dataset.records("images")))
print({field.removeprefix("images/"): value for field, value in record.items()})
