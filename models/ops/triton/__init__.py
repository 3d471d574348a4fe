"""Operations as Triton kernels: for CUDA devices, and in Triton's interpreter for tests on a CPU.

The plain torch operations beside this folder are the reference of every kernel.
"""
