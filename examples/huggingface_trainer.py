"""RecursiveMix with Hugging Face's Trainer: fine-tune an image classifier of the Hub, or of a folder.

    python examples/huggingface_trainer.py DATA --model google/vit-base-patch16-224 --layer vit
    python examples/huggingface_trainer.py DATA --model microsoft/resnet-50 --layer resnet

DATA has the folders ``train`` and ``val`` with one folder per class. ``OUT/model`` is what ``from_pretrained`` takes.
On several GPUs start it with torchrun: RM does not work with nn.DataParallel, the Trainer's way without.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
import torchvision
from torchvision.datasets import ImageFolder
from torchvision.transforms._presets import ImageClassification
from transformers import AutoModelForImageClassification, Trainer, TrainerCallback, TrainingArguments

from mmrm import RecursiveMixModel


class RecursiveMixTrainer(Trainer):
    """Trains a :class:`RecursiveMixModel`; evaluates the network in it."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        images, labels = inputs['pixel_values'], inputs['labels']
        if not return_outputs:  # training
            return model(images, labels)
        logits = model(images)
        return F.cross_entropy(logits, labels), {'logits': logits}


class ResetHistory(TrainerCallback):
    """The history starts empty at every epoch."""

    def on_epoch_begin(self, args, state, control, model=None, **kwargs):
        model.reset_history()


def collate(samples):
    return {
        'pixel_values': torch.stack([image for image, _ in samples]),
        'labels': torch.tensor([label for _, label in samples]),
    }


def accuracy(prediction):
    return {'accuracy': float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}


def parse_args(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('data', type=Path)
    parser.add_argument('--model', default='microsoft/resnet-50', help='a name on the Hub, or a folder')
    parser.add_argument('--layer', default='resnet', help='the last feature map; a wrong name prints the right ones')
    parser.add_argument('--epochs', type=int, default=10)
    parser.add_argument('--batch-size', type=int, default=64, help='per GPU')
    parser.add_argument('--lr', type=float, default=5e-5)
    parser.add_argument('--size', type=int, default=224, help='pixels')
    parser.add_argument('--omega', type=float, default=0.5)
    parser.add_argument('--out', type=Path, default=Path('out'))
    return parser.parse_args(argv)


def main(argv=None, **training_arguments):
    args = parse_args(argv)
    to_tensor = ImageClassification(crop_size=args.size, resize_size=args.size)
    random = [torchvision.transforms.RandomResizedCrop(args.size), torchvision.transforms.RandomHorizontalFlip()]
    train = ImageFolder(args.data / 'train', torchvision.transforms.Compose([*random, to_tensor]))
    val = ImageFolder(args.data / 'val', to_tensor)

    net = AutoModelForImageClassification.from_pretrained(
        args.model, num_labels=len(train.classes), ignore_mismatched_sizes=True
    )
    model = RecursiveMixModel(net, args.layer, omega=args.omega, input_size=args.size)
    settings = dict(
        output_dir=str(args.out), num_train_epochs=args.epochs, learning_rate=args.lr, eval_strategy='epoch',
        per_device_train_batch_size=args.batch_size, per_device_eval_batch_size=args.batch_size,
        dataloader_drop_last=True, remove_unused_columns=False, label_names=['labels'], report_to='none',
    )  # fmt: skip
    trainer = RecursiveMixTrainer(
        model, TrainingArguments(**{**settings, **training_arguments}), collate, train, val,
        compute_metrics=accuracy, callbacks=[ResetHistory()],
    )  # fmt: skip
    trainer.train()
    net.save_pretrained(args.out / 'model')  # the network alone
    return trainer


if __name__ == '__main__':
    main()
