import torch
from pytorch_metric_learning import losses, miners
from torch.utils.data import DataLoader

import hgld

dataset = hgld.open_dataset("shards", "train")
loader = DataLoader(dataset, batch_sampler=hgld.samplers.PKSampler(dataset, p=8, k=4))
model = torch.nn.Sequential(torch.nn.AvgPool2d(16), torch.nn.Flatten(), torch.nn.Linear(3 * 14 * 14, 64))
miner = miners.TripletMarginMiner(margin=0.2, type_of_triplets="semihard")
triplet = hgld.losses.wrap(losses.TripletMarginLoss(margin=0.2), miner)
theirs = hgld.losses.wrap(losses.MultiSimilarityLoss(), miners.MultiSimilarityMiner())
levels = hgld.losses.SumOverLevels(theirs)  # one term per level
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for batch in loader:
    embeddings, labels = model(batch["image"] / 255), batch["labels"]
    value = triplet(embeddings, labels) + levels(embeddings, labels)
    optimizer.zero_grad()
    value.backward()
    optimizer.step()
print(float(value))
