import lightning
import torch
from torch.utils.data import DataLoader

import hgld

dataset = hgld.open_dataset("shards", "train")


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.AvgPool2d(16), torch.nn.Flatten(), torch.nn.Linear(588, 64))
        self.loss, self.metric = hgld.losses.ROADMAP(), hgld.metrics.Retrieval(dataset.levels)

    def training_step(self, batch, step):
        return self.loss(self.net(batch["image"] / 255), batch["labels"])

    def validation_step(self, batch, step):
        self.metric.update(self.net(batch["image"] / 255), batch["labels"], batch["index"])

    def on_validation_epoch_end(self):
        self.log_dict(self.metric.compute())  # loss over both processes
        self.metric.reset()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


if __name__ == "__main__":  # each process gets 4 whole classes of every batch of 8
    loader = DataLoader(dataset, batch_sampler=hgld.samplers.PKSampler(dataset, p=8, k=4))
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", num_sanity_val_steps=0)
    trainer.fit(Model(), loader, DataLoader(hgld.open_dataset("shards", "test"), batch_size=64))
