"""Train a classification, detection or segmentation config."""

from ..apis.launch import train as main

__all__ = ['main']
