import lightning
import torch
from torch.utils.data import DataLoader

import hgld

dataset, test = (hgld.open_dataset("shards", split) for split in ("train", "test"))


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.AvgPool2d(16), torch.nn.Flatten(), torch.nn.Linear(588, 64))
        self.loss = hgld.losses.ROADMAP()
        self.metric = hgld.metrics.Retrieval(dataset.levels, metrics=("H-AP",)).torchmetric("H-AP")

    def training_step(self, batch, step):
        return self.loss(self.net(batch["image"] / 255), batch["labels"])

    def validation_step(self, batch, step):
        self.metric.update(self.net(batch["image"] / 255), batch["labels"], batch["index"])
        self.log("H-AP", self.metric)  # Lightning computes and resets it

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)

    def train_dataloader(self):
        place = {"process_index": self.trainer.global_rank, "process_count": self.trainer.world_size}
        return DataLoader(dataset, batch_sampler=hgld.samplers.PKSampler(dataset, p=8, k=4, **place))


if __name__ == "__main__":
    options = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", "num_sanity_val_steps": 0}
    trainer = lightning.Trainer(max_epochs=2, use_distributed_sampler=False, **options)
    trainer.fit(Model(), val_dataloaders=DataLoader(test, batch_size=64))
    print(trainer.callback_metrics)
