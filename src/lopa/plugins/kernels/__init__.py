"""The operators as Triton kernels, with their launchers on torch tensors. Importing a module here needs both."""
