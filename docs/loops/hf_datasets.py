from pathlib import Path

from datasets import load_dataset

files = {split: sorted(map(str, Path("shards").glob(f"{split}-*.tar"))) for split in ("train", "test")}
dataset = load_dataset("webdataset", data_files=files)
row = dataset["train"][0]
print(row["__key__"], row["jpg"].size, row["json"]["labels"], row["json"]["names"])
