import torch
from pytorch_metric_learning import trainers

import hgld

dataset = hgld.open_dataset("shards", "train")
model = torch.nn.Sequential(torch.nn.AvgPool2d(16), torch.nn.Flatten(), torch.nn.Linear(3 * 14 * 14, 64))
loss = hgld.losses.HAPPIER(num_classes=dataset.hierarchy.num_classes[0], dim=64)
sampler = hgld.samplers.PKSampler(dataset, p=8, k=4)
trainer = trainers.MetricLossOnly(
    models={"trunk": model},
    optimizers={
        "trunk_optimizer": torch.optim.Adam(model.parameters(), lr=1e-3),
        "metric_loss_optimizer": torch.optim.Adam(loss.parameters(), lr=1e-3),
    },
    batch_size=32,  # the batch size of the sampler
    loss_funcs={"metric_loss": loss},
    dataset=dataset,
    sampler=sampler,
    data_and_label_getter=lambda batch: (batch["image"] / 255, batch["labels"]),
    label_hierarchy_level="all",
    dataloader_num_workers=0,
)
trainer.train(num_epochs=2)
