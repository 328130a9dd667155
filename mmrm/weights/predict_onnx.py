"""Predict with a network that `mmrm export onnx` wrote: `python predict_onnx.py NETWORK.onnx IMAGE ...`

It needs onnxruntime, numpy and Pillow, and OpenCV where the test pipeline resizes with it, but neither mmrm nor torch.
The file of the network says how images go in; resized, cropped and normalised as here they are those of `mmrm predict`.
"""

import json
import sys

import numpy as np
from PIL import Image, ImageOps


def resize(image, size, step):
    name = step.get('interpolation', 'bilinear')
    if step.get('backend') == 'pillow':
        return np.asarray(Image.fromarray(image).resize(size, getattr(Image.Resampling, name.upper())))
    import cv2

    return cv2.resize(image, size, interpolation=dict(nearest=0, bilinear=1, bicubic=2, area=3, lanczos=4)[name])


def read_image(file, note):
    """An image as the network takes it, float32, (1, 3, height, width)."""
    image = ImageOps.exif_transpose(Image.open(file))
    if image.mode.startswith('I'):  # grey of 16 bits, of which convert would keep those below 256
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    image = np.asarray(image.convert('RGB'))
    for step in note['pipeline']:
        height, width = image.shape[:2]
        scale = step.get('scale') or step.get('crop_size')
        if step['type'] == 'ResizeEdge':  # the short one
            size = (scale, int(scale * height / width)) if width < height else (int(scale * width / height), scale)
            image = resize(image, size, step)
        elif step['type'] == 'Resize':
            image = resize(image, (scale, scale) if isinstance(scale, int) else tuple(scale), step)
        elif step['type'] == 'CenterCrop':
            wide, high = (scale, scale) if isinstance(scale, int) else scale
            left, top = max(0, round((width - wide) / 2)), max(0, round((height - high) / 2))
            image = image[top : top + high, left : left + wide]
    image = image[..., ::-1] if note['channel_order'] == 'bgr' else image
    pixels = (image.astype(np.float32) - np.float32(note['mean'] or 0)) / np.float32(note['std'] or 1)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None])


def main(network, *files):
    import onnxruntime

    session = onnxruntime.InferenceSession(network)
    found = session.get_modelmeta().custom_metadata_map
    note = {**found, **{key: json.loads(found[key]) for key in ('pipeline', 'mean', 'std', 'classes')}}
    for file in files:
        logits = session.run(None, {session.get_inputs()[0].name: read_image(file, note)})[0][0]
        scores = np.exp(logits - logits.max())
        scores /= scores.sum()
        best = (f'{note["classes"][index]} {scores[index]:.3f}' for index in scores.argsort()[::-1][:3])
        print(file, *best, sep='   ')


if __name__ == '__main__':
    main(*sys.argv[1:])
