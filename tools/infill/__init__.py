"""Toy model for infilling: arithmetic problems whose solution lacks a step, and a program that trains on them."""
