"""Random settings of the method, step by step against a slow reference: no wrong label, no wrong box, no new NaN.

    python benchmarks/fuzz_mixing.py                              # 100,000 steps, some minutes on one core
    python benchmarks/fuzz_mixing.py --seed 7 --episode 1234      # one episode again, as a failure names it

An episode is one RecursiveMix with its Consistency: drawn alpha, interpolation, prob, dtype, memory format and kind of
labels, then up to 40 batches of drawn sizes. Between them the history is reset, saved and loaded, or copied; another
augment takes a batch, or mixing is off; the model works in place on its input, or under inference mode; callers
overwrite what they gave and what they got; images and logits hold NaN and infinity; a batch gets no answer. The
reference (tests/reference.py for the region, this file for the mixing) keeps its own state.
"""

import argparse
import copy
import math
import sys
import time
import warnings
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'tests'))  # of the reference
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from reference import roi_align

from mmrm.core import Consistency, RecursiveMix

DTYPES = (torch.float32, torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8)
LABELS = ('int64', 'int32', 'uint8', 'one-hot', 'soft', 'half')
LOSSES = 0.1  # share of the steps whose loss is compared, which is the slow part


@dataclass
class Past:
    """What the reference keeps of a batch: images, labels, its answer (None: not answered)."""

    images: torch.Tensor
    labels: np.ndarray
    answer: Optional[np.ndarray] = None


class Reference:
    """The method in plain words, one sample at a time, with a generator of its own."""

    def __init__(self, alpha: float, prob: float, interpolation: str, seed: int):
        self.alpha, self.prob, self.interpolation = alpha, prob, interpolation
        self.rng = np.random.RandomState(seed)
        self.past: Optional[Past] = None
        self.enabled = True

    def mix(self, images: torch.Tensor, labels: np.ndarray, lost: bool):
        """Mixed images and labels, the box, how many samples were mixed, and the answer that they had."""
        height, width = images.shape[-2:]
        if not self.enabled or (self.prob < 1 and self.rng.uniform(0, 1) >= self.prob):
            return images, labels, (0, 0, 0, 0), 0, None
        images, labels, box, count, answer = images.clone(), labels.copy(), (0, 0, 0, 0), 0, None
        self.past = None if lost else self.past
        if self.past is not None:
            ratio = math.sqrt(self.rng.uniform(0, self.alpha))
            half_w, half_h = int(width * ratio) // 2, int(height * ratio) // 2
            x, y = self.rng.randint(width), self.rng.randint(height)
            box = max(x - half_w, 0), max(y - half_h, 0), min(x + half_w, width), min(y + half_h, height)
            wide, tall = box[2] - box[0], box[3] - box[1]
            if wide * tall:
                lam = wide * tall / (height * width)
                count, answer = min(len(images), len(self.past.images)), self.past.answer
                for n in range(count):
                    patch = resize(self.past.images[n].to(images.dtype), tall, wide, self.interpolation)
                    images[n, :, box[1] : box[3], box[0] : box[2]] = patch
                    labels[n] = lam * self.past.labels[n] + (1 - lam) * labels[n]
        self.past = Past(images.clone(), labels.copy())
        return images, labels, box, count, answer


def resize(image: torch.Tensor, height: int, width: int, interpolation: str) -> torch.Tensor:
    """A whole image ``(C, H, W)`` in another size, NaN and infinity as 0."""
    old = image.shape[-2:]
    if interpolation == 'nearest':
        rows, columns = (
            [min(int(np.float32(i) * (np.float32(a) / np.float32(b))), a - 1) for i in range(b)]
            for a, b in zip(old, (height, width))
        )
        out = image[:, rows][:, :, columns]
        return torch.where(out.isfinite(), out, torch.zeros_like(out))
    out, array = np.zeros((len(image), height, width)), image.double().numpy()
    steps = [(a - 1) / (b - 1) if b > 1 else 0.0 for a, b in zip(old, (height, width))]
    for i in range(height):
        for j in range(width):
            y, x = i * steps[0], j * steps[1]
            top, left = min(int(y + 1e-9), old[0] - 1), min(int(x + 1e-9), old[1] - 1)
            low, right = min(top + 1, old[0] - 1), min(left + 1, old[1] - 1)
            y, x = y - top, x - left
            upper = (1 - x) * array[:, top, left] + x * array[:, top, right]
            lower = (1 - x) * array[:, low, left] + x * array[:, low, right]
            out[:, i, j] = (1 - y) * upper + y * lower
    return torch.from_numpy(np.nan_to_num(out, nan=0.0, posinf=0.0, neginf=0.0))


class Wrong(AssertionError):
    """A step whose result is not the reference's."""


def check(right: bool, what: str) -> None:
    if not right:
        raise Wrong(what)


class Episode:
    """One drawn setting, and the steps that it takes."""

    def __init__(self, seed: int, number: int):
        self.draw = np.random.RandomState([seed % 2**32, number])
        draw = self.draw
        self.classes, self.channels = int(draw.randint(2, 6)), int(draw.randint(1, 4))
        self.dtype = DTYPES[draw.randint(len(DTYPES))]
        # A mean of NaN and a number is not the same in every order of adding: bilinear without bad values.
        self.bilinear = self.dtype.is_floating_point and draw.rand() < 0.2
        self.bad_values = self.dtype.is_floating_point and not self.bilinear and draw.rand() < 0.3
        self.labels = LABELS[draw.randint(len(LABELS))]
        self.size = tuple(draw.randint(1, 13, 2)) if draw.rand() < 0.6 else None
        self.batch = int(draw.randint(1, 6)) if draw.rand() < 0.5 else None
        self.mixed_precision = not self.bilinear and draw.rand() < 0.1
        self.channels_last, self.inference = draw.rand() < 0.3, draw.rand() < 0.2
        self.in_place = draw.rand() < 0.2
        settings = dict(alpha=float(draw.choice([0.1, 0.5, 1.0])), prob=float(draw.choice([1.0, 1.0, 0.5])))
        interpolation = 'bilinear' if self.bilinear else 'nearest'
        start = int(draw.randint(2**31))
        self.rm = RecursiveMix(
            interpolation=interpolation, num_classes=self.classes, rng=np.random.RandomState(start), **settings
        )
        self.reference = Reference(interpolation=interpolation, seed=start, **settings)
        torch.manual_seed(start)
        self.consistency = Consistency(self.channels, self.classes, omega=0.5)
        # Whether a model has overwritten the history, which is noticed once: from then on a copy is kept. Under
        # inference mode nothing can be noticed, and there is always a copy.
        self.lost, self.copies = False, self.inference

    def steps(self, number: int) -> None:
        for step in range(number):
            try:
                self.between()
                self.step()
            except Exception as error:
                raise Wrong(f'step {step}: {type(error).__name__}: {error}') from error

    def between(self) -> None:
        """What may happen between two batches."""
        event = self.draw.rand()
        if event < 0.05:
            self.rm.reset()
            self.reference.past, self.lost = None, False
        elif event < 0.10:  # resumed from a checkpoint
            if self.lost:
                self.reference.past = None
                self.notice_loss()
            state = {key: value.clone() for key, value in self.rm.state_dict().items()}
            fresh = RecursiveMix(
                self.rm.alpha, self.rm.interpolation, self.classes, np.random.RandomState(0), self.rm.prob
            )
            fresh.enabled = self.rm.enabled
            fresh.load_state_dict(state)
            self.rm = fresh
        elif event < 0.13:
            self.rm = copy.deepcopy(self.rm)
        elif event < 0.16:
            self.rm.enabled = self.reference.enabled = not self.rm.enabled
        elif event < 0.2:  # a batch that another augment took: no loss, and the history waits
            features, logits = torch.ones(2, self.channels, 2, 2), torch.ones(2, self.classes)
            check(self.consistency(None, features, logits).item() == 0, 'a loss of another augment')

    def notice_loss(self) -> None:
        self.lost, self.copies = False, True

    # ------------------------------------------------------------------------------------------------------------ drawn
    def images(self) -> torch.Tensor:
        size = self.size or tuple(self.draw.randint(1, 13, 2))
        shape = (self.batch or int(self.draw.randint(1, 6)), self.channels, *map(int, size))
        if not self.dtype.is_floating_point:
            images = torch.from_numpy(self.draw.randint(0, 256, shape).astype(np.uint8))
        else:
            dtype = torch.float32 if self.mixed_precision and self.draw.rand() < 0.5 else self.dtype
            images = torch.from_numpy(self.draw.randn(*shape)).to(dtype)
        if self.bad_values and self.draw.rand() < 0.3:
            bad = torch.from_numpy(self.draw.rand(*shape) < 0.1)
            images[bad] = float(self.draw.choice([np.nan, np.inf, -np.inf]))
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        elif self.draw.rand() < 0.2:  # a view of something larger
            images = torch.cat([images, images], 3)[..., : images.shape[3]]
        return images.requires_grad_(images.is_floating_point() and not self.inference and self.draw.rand() < 0.1)

    def drawn_labels(self, number: int) -> Tuple[torch.Tensor, np.ndarray]:
        """Labels as they are given, and as scores."""
        integers = torch.from_numpy(self.draw.randint(0, self.classes, number))
        if self.labels in ('int64', 'int32', 'uint8'):
            return integers.to(getattr(torch, self.labels)), np.eye(self.classes)[integers.numpy()]
        if self.labels == 'one-hot':
            scores = torch.nn.functional.one_hot(integers, self.classes)
        else:
            scores = torch.from_numpy(self.draw.dirichlet(np.ones(self.classes), number))
            scores = scores.half() if self.labels == 'half' else scores.float()
        return scores, scores.double().numpy()

    # ------------------------------------------------------------------------------------------------------------- step
    def step(self) -> None:
        with torch.inference_mode() if self.inference else nullcontext():
            self._step()

    def _step(self) -> None:
        images = self.images()
        labels, scores = self.drawn_labels(len(images))
        given, given_labels = images.detach().clone(), labels.clone()
        mixing = self.rm.enabled
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            mixed, fused, mix = self.rm.mix(images, labels)
        expected, wanted, box, count, answer = self.reference.mix(given, scores, self.lost)
        if self.lost and expected is not given:
            self.notice_loss()
        check(tuple(mix.box) == box and mix.count == count, f'box {mix.box}, {mix.count} instead of {box}, {count}')
        lam = (box[2] - box[0]) * (box[3] - box[1]) / (mix.image_size[0] * mix.image_size[1]) if count else 0.0
        check(mix.lam == lam and mix.image_size == tuple(images.shape[-2:]), f'lambda {mix.lam} instead of {lam}')
        self._compare_images(mixed.detach(), expected)
        check(mixed is images or not mixed.requires_grad, 'the mixed images have a gradient')
        check(fused.dtype == torch.float32 and fused.shape == wanted.shape, f'scores {fused.dtype} {fused.shape}')
        check(np.allclose(fused.numpy(), wanted, atol=1e-5), f'labels {fused.tolist()} instead of {wanted.tolist()}')
        check(torch.equal(labels, given_labels), 'the given labels were changed')
        check(torch.equal(images.detach().nan_to_num(), given.nan_to_num()), 'the given images were changed')
        check((mix.historical_prediction is None) == (answer is None), 'an answer of another iteration')
        if answer is not None:
            check(np.allclose(mix.historical_prediction.numpy(), answer, atol=1e-5), 'another prediction')
        if mixing and mixed is not images and self.draw.rand() < 0.9:
            self._answer(mixed, mix, count, lam, answer)
        self._overwrite(images, labels, mixed, fused)

    def _compare_images(self, mixed: torch.Tensor, expected: torch.Tensor) -> None:
        check(mixed.dtype == expected.dtype and mixed.shape == expected.shape, f'{mixed.dtype} {tuple(mixed.shape)}')
        check(torch.equal(mixed.isnan(), expected.isnan()), 'another NaN')
        tolerance = {torch.float16: 4e-3, torch.bfloat16: 4e-2}.get(self.dtype, 1e-5) if self.bilinear else 0.0
        a, b = mixed.nan_to_num().double(), expected.nan_to_num().double()
        check(torch.allclose(a, b, rtol=tolerance, atol=tolerance), f'pixels differ by {(a - b).abs().max():.3g}')
        if self.channels_last and mixed.shape[1] > 1:
            check(mixed.is_contiguous(memory_format=torch.channels_last), 'another memory format')

    def _answer(self, mixed: torch.Tensor, mix, count: int, lam: float, answer: Optional[np.ndarray]) -> None:
        """Give the iteration its prediction, and now and then compare its loss."""
        number, map_size = len(mixed), [int(self.draw.randint(1, 4)) for _ in range(2)]
        features = torch.from_numpy(self.draw.randn(number, self.channels, *map_size)).float()
        logits = torch.from_numpy(3 * self.draw.randn(number, self.classes)).float()
        if self.bad_values and self.draw.rand() < 0.2:
            logits[0, 0] = float(self.draw.choice([np.nan, np.inf]))
        with torch.no_grad():
            loss = float(self.consistency(mix, features, logits))
        check(math.isfinite(loss) and loss >= 0, f'loss {loss}')
        prediction = torch.softmax(logits, 1).double().numpy()
        prediction[~np.isfinite(prediction).all(1)] = 0
        if self.reference.past is not None:
            self.reference.past.answer = prediction
        if self.draw.rand() < LOSSES:
            check(math.isclose(loss, self._loss(features, mix, count, lam, answer), abs_tol=2e-4), f'loss {loss}')

    def _loss(self, features: torch.Tensor, mix, count: int, lam: float, answer: Optional[np.ndarray]) -> float:
        total = 0.0
        for n in range(count if answer is not None else 0):
            region = roi_align(features[n], mix.box, mix.image_size)
            scores = (self.consistency.fc_roi.weight @ region + self.consistency.fc_roi.bias).detach().double().numpy()
            log_q = scores - scores.max() - math.log(np.exp(scores - scores.max()).sum())
            total += sum(p * (math.log(p) - q) for p, q in zip(answer[n], log_q) if p > 0)
        return 0.5 * lam * total / len(features)

    def _overwrite(self, images: torch.Tensor, labels: torch.Tensor, mixed: torch.Tensor, fused: torch.Tensor) -> None:
        """What callers and models do to tensors: the history must not change, or be known to be lost."""
        images.detach().zero_()
        labels.zero_()
        fused.zero_()
        if self.in_place and mixed is not images and self.draw.rand() < 0.5:
            mixed.zero_()
            self.lost = not self.copies


def run(steps: int = 100_000, seed: int = 0, episode: Optional[int] = None) -> int:
    """Run episodes until there are so many steps, or one alone; returns the steps taken.

    Raises:
        Wrong: It names the episode that failed first.
    """
    done, number = 0, episode or 0
    while done < steps:
        length = 1 + np.random.RandomState([seed % 2**32, number, 1]).randint(40)
        try:
            Episode(seed, number).steps(length)
        except Wrong as error:
            raise Wrong(f'--seed {seed} --episode {number}: {error}') from error
        done, number = done + length, number + 1
        if episode is not None:
            break
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--steps', type=int, default=100_000)
    parser.add_argument('--seed', type=int, default=0)
    parser.add_argument('--episode', type=int, help='run only this episode')
    args = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    done = run(args.steps, args.seed, args.episode)
    print(f'{done} steps, seed {args.seed}: every one as the reference, {time.perf_counter() - start:.0f} s')


if __name__ == '__main__':
    main()
