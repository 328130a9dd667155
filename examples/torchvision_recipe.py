"""RecursiveMix in torchvision's recipe: several GPUs, mixed precision, warm-up and cosine, averaged weights, resuming.

    python examples/torchvision_recipe.py DATA --model resnet50 --layer layer4
    torchrun --nproc_per_node 8 examples/torchvision_recipe.py DATA --model swin_t --layer permute --lr 0.05

DATA has the folders ``train`` and ``val`` with one folder per class. An interrupted run resumes from ``OUT/last.pth``.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, DistributedSampler
from torchvision.datasets import ImageFolder
from torchvision.transforms._presets import ImageClassification

from mmrm import RecursiveMixModel


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('data', type=Path)
    parser.add_argument('--model', default='resnet50')
    parser.add_argument('--layer', default='layer4', help='the last feature map; a wrong name prints the right ones')
    parser.add_argument('--epochs', type=int, default=300)
    parser.add_argument('--batch-size', type=int, default=64, help='per process')
    parser.add_argument('--lr', type=float, default=0.2)
    parser.add_argument('--size', type=int, default=224, help='pixels')
    parser.add_argument('--omega', type=float, default=0.5)
    parser.add_argument('--workers', type=int, default=4)
    parser.add_argument('--out', type=Path, default=Path('out'))
    return parser.parse_args(argv)


def main(argv=None):
    args, distributed = parse_args(argv), 'RANK' in os.environ
    cuda = torch.cuda.is_available()
    device = torch.device('cuda', int(os.environ.get('LOCAL_RANK', 0))) if cuda else torch.device('cpu')
    if distributed:
        dist.init_process_group('nccl' if cuda else 'gloo')

    to_tensor = ImageClassification(crop_size=args.size, resize_size=args.size)
    random = [torchvision.transforms.RandomResizedCrop(args.size), torchvision.transforms.RandomHorizontalFlip()]
    train = ImageFolder(args.data / 'train', torchvision.transforms.Compose([*random, to_tensor]))
    val = ImageFolder(args.data / 'val', ImageClassification(crop_size=args.size, resize_size=args.size * 8 // 7))
    sampler = DistributedSampler(train) if distributed else None
    options = dict(batch_size=args.batch_size, num_workers=args.workers)
    train_loader = DataLoader(train, shuffle=sampler is None, sampler=sampler, drop_last=True, **options)

    net = torchvision.models.get_model(args.model, weights=None, num_classes=len(train.classes)).to(device)
    model = RecursiveMixModel(net, args.layer, omega=args.omega, input_size=args.size, label_smoothing=0.1)
    average = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.999), use_buffers=True)
    parallel = DistributedDataParallel(model) if distributed else model  # no find_unused_parameters
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    cosine = CosineAnnealingLR(optimizer, max(args.epochs - 5, 1))
    schedule = SequentialLR(optimizer, [LinearLR(optimizer, 0.01, total_iters=5), cosine], [5])
    parts = dict(model=model, average=average, optimizer=optimizer, schedule=schedule)
    first, last = 0, args.out / 'last.pth'
    if last.exists():
        state = torch.load(last, map_location=device)
        first = state.pop('epoch')
        for name, part in parts.items():
            part.load_state_dict(state[name])

    for epoch in range(first, args.epochs):
        parallel.train()
        model.reset_history()  # so that a run resumed at an epoch's end loses nothing
        if sampler is not None:
            sampler.set_epoch(epoch)
        for images, labels in train_loader:
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
                loss = parallel(images.to(device), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update_parameters(model.module)
        schedule.step()
        if not distributed or dist.get_rank() == 0:
            args.out.mkdir(parents=True, exist_ok=True)
            torch.save({'epoch': epoch + 1, **{name: part.state_dict() for name, part in parts.items()}}, last)
            torch.save(average.module.state_dict(), args.out / 'model.pth')  # for deployment, without RM's layer
            average.eval()
            with torch.no_grad():
                hits = [average(x.to(device)).argmax(1).cpu() == y for x, y in DataLoader(val, **options)]
            print(f'epoch {epoch + 1}: loss {loss.item():.4f}, accuracy {torch.cat(hits).float().mean():.2%}')
    if distributed:
        dist.destroy_process_group()


if __name__ == '__main__':
    main()
