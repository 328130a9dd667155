"""Train a classification, detection or segmentation config."""

from .launch import prepare_train as prepare
from .launch import train as main
from .launch import train_parser as parser

__all__ = ['main', 'parser', 'prepare']
