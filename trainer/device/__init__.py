"""The only package that imports cupy or nvmath: arrays, GEMM, kernel launches, regions, graphs."""

from trainer.device.base import Device, NumpyDevice, Region, open_device
from trainer.device.fields import Field, Store, allocate, footprint

__all__ = ["Device", "Field", "NumpyDevice", "Region", "Store", "allocate", "footprint", "open_device"]
