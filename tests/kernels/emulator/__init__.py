"""CUDA kernels on a CPU: `shim.h` makes their text C++, `emulator.py` builds and launches it."""
