"""Train a classification, detection or segmentation config."""

from .launch import train as main

__all__ = ['main']
