"""RecursiveMix in timm's own training loop: its task, loaders, optimizer, scheduler, averaged weights, checkpoints.

    python examples/timm_task.py DATA --model resnet50 --layer layer4 --epochs 100
    torchrun --nproc_per_node 8 examples/timm_task.py DATA --model vit_small_patch16_224 --layer norm --opt adamw

DATA has the folders ``train`` and ``val`` with one folder per class. ``OUT/model_best.pth.tar`` loads into
``timm.create_model(..., checkpoint_path=...)``. ``--resume OUT/last.pth.tar`` continues after the last epoch.
"""

import argparse
from pathlib import Path

import numpy as np
import timm
import torch
from timm.data import create_dataset, create_loader
from timm.loss import BinaryCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.task import load_task_ema_checkpoint, resume_task_checkpoint
from timm.utils import CheckpointSaver, accuracy
from timm.utils.distributed import init_distributed_device_so

from mmrm.timm_task import RecursiveMixTask


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('data', type=Path)
    parser.add_argument('--model', default='resnet50')
    parser.add_argument('--layer', default='layer4', help='the last feature map; a wrong name prints the right ones')
    parser.add_argument('--epochs', type=int, default=100)
    parser.add_argument('--off-epochs', type=int, default=0, help='not mixed at the end')
    parser.add_argument('--batch-size', type=int, default=64, help='per process')
    parser.add_argument('--opt', default='lamb')
    parser.add_argument('--lr', type=float, default=5e-3)
    parser.add_argument('--size', type=int, default=224, help='pixels')
    parser.add_argument('--omega', type=float, default=0.5)
    parser.add_argument('--bce', action='store_true', help='binary cross entropy, as in "ResNet strikes back"')
    parser.add_argument('--workers', type=int, default=4)
    parser.add_argument('--resume', type=Path)
    parser.add_argument('--out', type=Path, default=Path('out'))
    return parser.parse_args(argv)


def main(argv=None):
    args = parse_args(argv)
    place = init_distributed_device_so('cuda' if torch.cuda.is_available() else 'cpu')
    device, distributed = torch.device(place['device']), place['distributed']
    common = dict(
        input_size=args.size, batch_size=args.batch_size, num_workers=args.workers, device=device,
        use_prefetcher=device.type == 'cuda', persistent_workers=args.workers > 0,
    )  # fmt: skip
    train_set = create_dataset('', str(args.data), split='train', is_training=True)
    train_loader = create_loader(train_set, is_training=True, distributed=distributed, **common)
    val_loader = create_loader(create_dataset('', str(args.data), split='val'), **common)
    net = timm.create_model(args.model, num_classes=len(train_set.reader.class_to_idx))
    criterion = BinaryCrossEntropy(target_threshold=0.2) if args.bce else None
    options = dict(omega=args.omega, input_size=args.size, rng=np.random.RandomState(place['global_rank']))
    task = RecursiveMixTask(net, args.layer, criterion, device=device, **options)
    task.setup_ema(decay=0.999)
    if distributed:
        task.prepare_distributed(device_ids=[device] if device.type == 'cuda' else None)
    optimizer = create_optimizer_v2(task.get_trainable_module(), opt=args.opt, lr=args.lr, weight_decay=0.02)
    schedule, _ = create_scheduler_v2(optimizer, num_epochs=args.epochs, warmup_epochs=min(5, args.epochs - 1))
    first = resume_task_checkpoint(task, args.resume, optimizer) if args.resume else 0
    if args.resume:
        load_task_ema_checkpoint(task, args.resume)
    args.out.mkdir(parents=True, exist_ok=True)
    saver = CheckpointSaver(net, optimizer, task=task, checkpoint_dir=str(args.out), max_history=1)

    for epoch in range(first, args.epochs):
        schedule.step(epoch)
        if distributed:
            train_loader.sampler.set_epoch(epoch)
        task.train().reset_history()
        task.module.enabled = epoch < args.epochs - args.off_epochs
        for images, labels in train_loader:
            loss = task(images.to(device), labels.to(device))['loss']
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            task.update_ema()
        if place['global_rank'] == 0:
            top1 = evaluate(task.get_eval_model(ema=True), val_loader, device)
            print(f'epoch {epoch + 1}: loss {loss.item():.4f}, accuracy of the average {top1:.2f} %')
            saver.save_checkpoint(epoch, top1)
    return task


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    found = [(accuracy(model(images.to(device)), labels.to(device))[0], len(labels)) for images, labels in loader]
    return float(sum(top1 * number for top1, number in found) / sum(number for _, number in found))


if __name__ == '__main__':
    main()
