import webdataset

dataset = webdataset.WebDataset("shards/train-000000.tar", shardshuffle=False).decode("pil").to_tuple("jpg", "json")
image, facts = next(iter(dataset))
print(image.size, facts["labels"], facts["names"])
