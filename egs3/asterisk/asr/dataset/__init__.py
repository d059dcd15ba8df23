"""The corpus: how it is built and how it is read."""

from dataset.builder import AsteriskBuilder as DatasetBuilder
from dataset.dataset import ManifestDataset as Dataset

__all__ = ["Dataset", "DatasetBuilder"]
