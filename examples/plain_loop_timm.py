"""RecursiveMix in a plain loop: a convolutional network of timm, and the method's two parts by themselves.

    python examples/plain_loop_timm.py DATA --model resnet50 --epochs 100

DATA has the folders ``train`` and ``val`` with one folder per class. For RM in two lines instead, also around
transformers, see ``torchvision_recipe.py``: ``mmrm.RecursiveMixModel`` takes timm's networks, too.
"""

import argparse
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from mmrm import Consistency, RecursiveMix


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('data', type=Path)
    parser.add_argument('--model', default='resnet50', help="a network with NCHW maps: timm.list_models('*resn*')")
    parser.add_argument('--epochs', type=int, default=100)
    parser.add_argument('--batch-size', type=int, default=64)
    parser.add_argument('--lr', type=float, default=0.1)
    parser.add_argument('--size', type=int, default=224, help='pixels')
    parser.add_argument('--alpha', type=float, default=0.5)
    parser.add_argument('--omega', type=float, default=0.5)
    parser.add_argument('--workers', type=int, default=4)
    parser.add_argument('--out', type=Path, default=Path('model.pth'))
    return parser.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    augment = timm.data.create_transform(args.size, is_training=True, color_jitter=0.4, auto_augment=None)
    train = ImageFolder(args.data / 'train', augment)
    val = ImageFolder(args.data / 'val', timm.data.create_transform(args.size))
    options = dict(batch_size=args.batch_size, num_workers=args.workers, pin_memory=device == 'cuda')
    train_loader = DataLoader(train, shuffle=True, drop_last=True, **options)
    val_loader = DataLoader(val, **options)

    num_classes = len(train.classes)
    net = timm.create_model(args.model, num_classes=num_classes).to(device)
    rm = RecursiveMix(alpha=args.alpha, num_classes=num_classes)
    consistency = Consistency(net.num_features, num_classes, omega=args.omega).to(device)

    # The layer of the consistency loss is trained along and left out of what is saved.
    parameters = [*net.parameters(), *consistency.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=args.lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)

    accuracy = 0.0
    for epoch in range(args.epochs):
        net.train()
        rm.reset()  # the history starts empty at every epoch, as the authors' does
        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)
            images, scores, mix = rm.mix(images, labels)
            feature_map = net.forward_features(images)
            logits = net.forward_head(feature_map)
            loss = F.cross_entropy(logits, scores) + consistency(mix, feature_map, logits)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()
        accuracy = evaluate(net, val_loader, device)
        print(f'epoch {epoch + 1}: loss {loss.item():.4f}, accuracy {accuracy:.2%}')
    torch.save(net.state_dict(), args.out)
    return accuracy


@torch.no_grad()
def evaluate(net, loader, device):
    net.eval()
    right = sum((net(images.to(device)).argmax(1).cpu() == labels).sum().item() for images, labels in loader)
    return right / len(loader.dataset)


if __name__ == '__main__':
    main()
