"""The program lopa-export, one module per command.

A command is imported when it is requested. Only the commands that export import torch.
"""
