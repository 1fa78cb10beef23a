"""The commands that compile engines of a bundle: plan, tensorrt, ascend."""
