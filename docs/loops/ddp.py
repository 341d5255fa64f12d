import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import hgld
from hgld.distributed import DistributedLoss

torch.distributed.init_process_group("gloo")  # torchrun --nproc-per-node 2 ddp.py
place = {"process_index": torch.distributed.get_rank(), "process_count": torch.distributed.get_world_size()}
dataset, tests = hgld.open_dataset("shards", "train"), hgld.open_dataset("shards", "test")
# Each process gets 4 x 4 items.
loader = DataLoader(dataset, batch_sampler=hgld.samplers.PKSampler(dataset, p=8, k=4, **place))
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.AvgPool2d(16), torch.nn.Flatten(), torch.nn.Linear(3 * 14 * 14, 64))
model = DistributedDataParallel(net)
loss = DistributedLoss(hgld.losses.ROADMAP())  # loss over the 8 x 4 items of both processes
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for batch in loader:
    value = loss(model(batch["image"] / 255), batch["labels"])
    optimizer.zero_grad()
    value.backward()
    optimizer.step()

metric = hgld.metrics.Retrieval(dataset.levels, metrics=("R@1", "H-AP"))
with torch.inference_mode():
    for batch in DataLoader(tests, batch_size=64, sampler=DistributedSampler(tests)):
        metric.update(net(batch["image"] / 255), batch["labels"], batch["index"])  # a repeated item counts once
values = metric.compute()  # every process calls this, and gets the values over all items
if place["process_index"] == 0:
    print(values)
torch.distributed.destroy_process_group()
