"""Networks under the names of the RecursiveMix authors' CIFAR code, and what several tests need.

Written after the names and the structure that their code gives to its layers, in widths as small as one likes.
"""

import torch
from mmengine.model import BaseModule
from mmengine.registry import MODELS, init_default_scope
from torch import nn


def shake(module: nn.Module) -> nn.Module:
    """Give every parameter and buffer a value of its own, so that nothing equals by being at its start value."""
    with torch.no_grad():
        for name, tensor in module.state_dict(keep_vars=True).items():
            if name.endswith('num_batches_tracked'):
                tensor.fill_(7)
            elif name.endswith('running_var') or (tensor.ndim == 1 and name.endswith('weight')):
                tensor.uniform_(0.5, 1.5)
            elif tensor.is_floating_point():  # Swin keeps the places in its windows, whole numbers
                # keeps the scale through deep networks
                tensor.normal_(0, (1 / tensor[0].numel()) ** 0.5 if tensor.ndim > 1 else 0.1)
    module.eval()  # mmdet's ResNet returns None here
    return module


def backbone(scope: str = 'mmdet', **config) -> nn.Module:
    """A backbone of one of the toolboxes."""
    init_default_scope(scope)
    return MODELS.build(dict(config))


class Model(BaseModule):
    """What a detector is to an initializer: a module with a backbone and something else."""

    def __init__(self, backbone, init_cfg=None):
        super().__init__(init_cfg)
        self.backbone = backbone
        self.neck = nn.Conv2d(3, 3, 1)


class CIFARResNet(nn.Module):
    """conv1 = (conv, BN, ReLU); conv2_x to conv5_x; blocks of residual_function and shortcut; fc, fc_roi."""

    def __init__(self, bottleneck=False, blocks=(2, 2, 2, 2), width=8, num_classes=5):
        super().__init__()
        self.conv1 = nn.Sequential(nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        channels = width
        for stage, number in enumerate(blocks):
            layers = []
            for index in range(number):
                stride = 2 if stage > 0 and index == 0 else 1
                layers.append(CIFARBlock(channels, width * 2**stage, stride, bottleneck))
                channels = width * 2**stage * (4 if bottleneck else 1)
            setattr(self, f'conv{stage + 2}_x', nn.Sequential(*layers))
        self.fc, self.fc_roi = nn.Linear(channels, num_classes), nn.Linear(channels, num_classes)

    def forward(self, x):
        x = self.conv5_x(self.conv4_x(self.conv3_x(self.conv2_x(self.conv1(x)))))
        return self.fc(x.mean((2, 3)))


class CIFARBlock(nn.Module):
    def __init__(self, channels, width, stride, bottleneck):
        super().__init__()
        sizes = (
            [(channels, width, 1, 1), (width, width, 3, stride), (width, 4 * width, 1, 1)]
            if bottleneck
            else [(channels, width, 3, stride), (width, width, 3, 1)]
        )
        layers = []
        for inner, outer, kernel, step in sizes:
            layers += [nn.Conv2d(inner, outer, kernel, step, kernel // 2, bias=False), nn.BatchNorm2d(outer), nn.ReLU()]
        self.residual_function = nn.Sequential(*layers[:-1])
        out = sizes[-1][1]
        self.shortcut = (
            nn.Sequential()
            if stride == 1 and channels == out
            else nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x):
        return torch.relu(self.residual_function(x) + self.shortcut(x))


class CIFARDenseNet(nn.Module):
    """conv1; features.dense_block_layer_S / transition_layer_S, the last block dense_block3, bn; linear, linear_roi."""

    def __init__(self, growth=4, blocks=(2, 3, 2, 2), num_classes=5):
        super().__init__()
        channels = 2 * growth
        self.conv1 = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.features = nn.Sequential()
        for stage, number in enumerate(blocks):
            dense = nn.Sequential()
            for index in range(number):
                dense.add_module(f'bottle_neck_layer_{index}', DenseLayer(channels, growth))
                channels += growth
            last = stage == len(blocks) - 1
            self.features.add_module(f'dense_block{stage}' if last else f'dense_block_layer_{stage}', dense)
            if not last:
                self.features.add_module(f'transition_layer_{stage}', Transition(channels))
                channels //= 2
        self.features.add_module('bn', nn.BatchNorm2d(channels))
        self.features.add_module('relu', nn.ReLU())
        self.linear, self.linear_roi = nn.Linear(channels, num_classes), nn.Linear(channels, num_classes)

    def forward(self, x):
        return self.linear(self.features(self.conv1(x)).mean((2, 3)))


class DenseLayer(nn.Module):
    def __init__(self, channels, growth):
        super().__init__()
        self.bottle_neck = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x):
        return torch.cat([x, self.bottle_neck(x)], 1)


class Transition(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.down_sample = nn.Sequential(
            nn.BatchNorm2d(channels), nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)
        )

    def forward(self, x):
        return self.down_sample(x)


class PyramidNet(nn.Module):
    """conv1, bn1, layer1 to layer3 of bottlenecks bn1 conv1 ... conv3 bn4, bn_final; fc, fc_roi."""

    def __init__(self, depth=29, alpha=24, num_classes=5):
        super().__init__()
        number = (depth - 2) // 9
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        channels, width = 16, 16.0
        for stage in (1, 2, 3):
            blocks = []
            for index in range(number):
                width += alpha / (3 * number)
                blocks.append(PyramidBlock(channels, round(width), 2 if stage > 1 and index == 0 else 1))
                channels = 4 * round(width)
            setattr(self, f'layer{stage}', nn.Sequential(*blocks))
        self.bn_final = nn.BatchNorm2d(channels)
        self.fc, self.fc_roi = nn.Linear(channels, num_classes), nn.Linear(channels, num_classes)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(self.bn1(self.conv1(x)))))
        return self.fc(torch.relu(self.bn_final(x)).mean((2, 3)))


class PyramidBlock(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, width, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn3, self.conv3 = nn.BatchNorm2d(width), nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn4 = nn.BatchNorm2d(4 * width)
        self.stride = stride

    def forward(self, x):
        out = self.conv1(self.bn1(x))
        out = self.conv2(torch.relu(self.bn2(out)))
        out = self.bn4(self.conv3(torch.relu(self.bn3(out))))
        if self.stride == 2:
            x = nn.functional.avg_pool2d(x, 2, ceil_mode=True)
        new = out.shape[1] - x.shape[1]
        return out + torch.cat([x, x.new_zeros(len(x), new, *x.shape[2:])], 1)


def release(model: nn.Module, file, epoch: int = 300):
    """Save a network as the authors' code does."""
    state_dict = {f'module.{key}': value for key, value in model.state_dict().items()}
    torch.save(dict(epoch=epoch, state_dict=state_dict, optimizer=dict(state={}, param_groups=[dict(lr=0.1)])), file)
    return file


def classifier(config: dict, in_channels: int = 64, head: str = 'LinearClsHead', pooled: bool = False, **arguments):
    """mmpretrain's classifier of five classes: stock, or with RM's head; ``pooled`` if its backbone pools itself."""
    init_default_scope('mmpretrain')
    if str(config['type']).startswith('mmdet.'):
        import mmdet.models  # noqa: F401
    stock = not pooled and head != 'RMConsistencyHead'
    return MODELS.build(
        dict(
            type='ImageClassifier',
            backbone=dict(config),
            neck=dict(type='GlobalAveragePooling') if stock else None,
            head=dict(dict(type=head, num_classes=5, in_channels=in_channels), **arguments),
        )
    ).eval()


def logits(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What a classifier says of normalised images, before softmax."""
    with torch.no_grad():
        return model(x, mode='tensor') if hasattr(model, 'with_neck') else model(x)


def narrow_resnet(depth: int = 18, classes: int = 5, **config) -> nn.Module:
    """A ResNet of width 8 in torchvision's names, its ``fc`` included."""
    model = backbone('mmpretrain', **dict(dict(type='ResNet', depth=depth, stem_channels=8, base_channels=8), **config))
    model.fc = nn.Linear(model.layer4[-1].out_channels, classes)
    return model
