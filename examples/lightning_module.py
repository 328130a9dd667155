"""RecursiveMix in a LightningModule.

    python examples/lightning_module.py DATA --model resnet50 --layer layer4 --epochs 100

DATA has the folders ``train`` and ``val`` with one folder per class. Lightning's own strategies, precisions and
callbacks work as usual: ``trainer_options`` of ``main`` are those of ``lightning.Trainer``.
"""

import argparse
from pathlib import Path

import lightning
import numpy as np
import torch
import torchvision
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms._presets import ImageClassification

from mmrm import RecursiveMixModel


class RecursiveMixClassifier(lightning.LightningModule):
    """A network of torchvision with RM. With a ``StatefulDataLoader`` of torchdata a resume in mid-epoch is exact."""

    def __init__(self, model, layer, num_classes, size=224, omega=0.5, lr=0.1, epochs=100, off_epochs=0, seed=0):
        super().__init__()
        self.save_hyperparameters()
        net = torchvision.models.get_model(model, weights=None, num_classes=num_classes)
        self.model = RecursiveMixModel(net, layer, omega=omega, input_size=size, rng=np.random.RandomState(seed))

    def on_train_epoch_start(self):  # Lightning does not call it where a run resumes in mid-epoch
        self.model.reset_history()

    def on_train_batch_start(self, batch, _):
        self.model.enabled = self.current_epoch < self.hparams.epochs - self.hparams.off_epochs

    def on_save_checkpoint(self, checkpoint):  # every process has its own history
        states = [self.model.rm.state_dict()]
        if self.trainer.world_size > 1:
            states = [None] * self.trainer.world_size
            torch.distributed.all_gather_object(states, self.model.rm.state_dict())
        checkpoint['rm'] = states

    def on_load_checkpoint(self, checkpoint):
        self.model.rm.load_state_dict(checkpoint['rm'][self.global_rank])

    def training_step(self, batch, _):
        loss = self.model(*batch)
        self.log_dict({f'train/{name}': value for name, value in self.model.losses.items()})
        return loss

    def validation_step(self, batch, _):
        images, labels = batch
        accuracy = (self.model(images).argmax(1) == labels).float().mean()
        self.log('val/accuracy', accuracy, prog_bar=True, batch_size=len(labels), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9, weight_decay=1e-4)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.hparams.epochs)]


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('data', type=Path)
    parser.add_argument('--model', default='resnet50')
    parser.add_argument('--layer', default='layer4', help='the last feature map; a wrong name prints the right ones')
    parser.add_argument('--epochs', type=int, default=100)
    parser.add_argument('--batch-size', type=int, default=64, help='per process')
    parser.add_argument('--lr', type=float, default=0.1)
    parser.add_argument('--size', type=int, default=224, help='pixels')
    parser.add_argument('--omega', type=float, default=0.5)
    parser.add_argument('--workers', type=int, default=4)
    parser.add_argument('--out', type=Path, default=Path('model.pth'))
    return parser.parse_args(argv)


def main(argv=None, **trainer_options):
    args = parse_args(argv)
    to_tensor = ImageClassification(crop_size=args.size, resize_size=args.size)
    random = [torchvision.transforms.RandomResizedCrop(args.size), torchvision.transforms.RandomHorizontalFlip()]
    train = ImageFolder(args.data / 'train', torchvision.transforms.Compose([*random, to_tensor]))
    val = ImageFolder(args.data / 'val', to_tensor)
    options = dict(batch_size=args.batch_size, num_workers=args.workers)

    classifier = RecursiveMixClassifier(
        args.model, args.layer, len(train.classes), size=args.size, omega=args.omega, lr=args.lr, epochs=args.epochs
    )
    trainer = lightning.Trainer(max_epochs=args.epochs, **trainer_options)
    trainer.fit(classifier, DataLoader(train, shuffle=True, drop_last=True, **options), DataLoader(val, **options))
    torch.save(classifier.model.module.state_dict(), args.out)  # the network alone
    return trainer


if __name__ == '__main__':
    main()
