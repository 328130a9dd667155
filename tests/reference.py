"""RecursiveMix written out with loops, to be obviously right rather than fast. The tests' oracle."""

import math

import numpy as np
import torch


def nearest(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Resize ``(C, H, W)``: output pixel ``i`` shows input pixel ``floor(i * in / out)``."""
    out = torch.empty(image.shape[0], height, width)
    scale_y, scale_x = np.float32(image.shape[1]) / np.float32(height), np.float32(image.shape[2]) / np.float32(width)
    for i in range(height):
        for j in range(width):
            y = min(int(np.float32(i) * scale_y), image.shape[1] - 1)
            x = min(int(np.float32(j) * scale_x), image.shape[2] - 1)
            out[:, i, j] = image[:, y, x]
    return out


def sample_at(feature: torch.Tensor, y: float, x: float) -> torch.Tensor:
    """Bilinear value of ``(C, h, w)`` at a point, as RoIAlign defines it outside the map too."""
    height, width = feature.shape[1:]
    if y < -1 or y > height or x < -1 or x > width:
        return torch.zeros(feature.shape[0])
    y, x = min(max(y, 0), height - 1), min(max(x, 0), width - 1)
    y0, x0 = int(y), int(x)
    y1, x1 = min(y0 + 1, height - 1), min(x0 + 1, width - 1)
    fy, fx = y - y0, x - x0
    return (
        (1 - fy) * (1 - fx) * feature[:, y0, x0]
        + (1 - fy) * fx * feature[:, y0, x1]
        + fy * (1 - fx) * feature[:, y1, x0]
        + fy * fx * feature[:, y1, x1]
    )


def roi_align(feature: torch.Tensor, box, image_size) -> torch.Tensor:
    """1x1 RoIAlign of ``(C, h, w)``, aligned, adaptive sampling, one scale an axis."""
    x1, y1, x2, y2 = box
    scale_y, scale_x = feature.shape[1] / image_size[0], feature.shape[2] / image_size[1]
    top, left = y1 * scale_y - 0.5, x1 * scale_x - 0.5
    height, width = (y2 - y1) * scale_y, (x2 - x1) * scale_x
    rows, columns = max(math.ceil(height), 1), max(math.ceil(width), 1)
    total = torch.zeros(feature.shape[0])
    for i in range(rows):
        for j in range(columns):
            total = total + sample_at(feature, top + (i + 0.5) * height / rows, left + (j + 0.5) * width / columns)
    return total / (rows * columns)


class PlainRM:
    """The method, step by step, with a state of its own. ``rng`` must be drawn from in the order of the method."""

    def __init__(self, alpha, omega, rng):
        self.alpha, self.omega, self.rng = alpha, omega, rng
        self.images = self.labels = self.predictions = None

    def mix(self, images, labels):
        """Return mixed images, mixed labels and the box (None if nothing was mixed)."""
        images, labels = images.clone(), labels.clone()
        height, width = images.shape[2:]
        self.box, self.lam, self.count = None, 0.0, 0
        if self.images is not None:
            lam = self.rng.uniform(0, self.alpha)
            cut_w, cut_h = int(width * math.sqrt(lam)), int(height * math.sqrt(lam))
            center_x, center_y = self.rng.randint(width), self.rng.randint(height)
            x1, x2 = max(center_x - cut_w // 2, 0), min(center_x + cut_w // 2, width)
            y1, y2 = max(center_y - cut_h // 2, 0), min(center_y + cut_h // 2, height)
            if x2 > x1 and y2 > y1:
                self.box = (x1, y1, x2, y2)
                self.lam = (x2 - x1) * (y2 - y1) / (height * width)
                self.count = min(len(images), len(self.images))
                for n in range(self.count):
                    images[n, :, y1:y2, x1:x2] = nearest(self.images[n], y2 - y1, x2 - x1)
                    labels[n] = self.lam * self.labels[n] + (1 - self.lam) * labels[n]
        self.images, self.labels = images.clone(), labels.clone()
        return images, labels

    def losses(self, features, labels, fc, fc_roi, image_size):
        """Return the classification loss and the consistency loss of a batch of feature maps."""
        loss = consistency = torch.zeros(())
        predictions = []
        for n in range(len(features)):
            scores = fc(features[n].mean(dim=(1, 2)))
            log_p = scores - torch.logsumexp(scores, 0)
            loss = loss - (labels[n] * log_p).sum() / len(features)
            predictions.append(log_p.exp().detach())
            if n < self.count and self.predictions is not None:
                roi_scores = fc_roi(roi_align(features[n], self.box, image_size))
                log_q = roi_scores - torch.logsumexp(roi_scores, 0)
                p = self.predictions[n]
                kl = (p * (p.log() - log_q)).sum()
                consistency = consistency + self.omega * self.lam * kl / len(features)
        self.predictions = predictions
        return loss, consistency
