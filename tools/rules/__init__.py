"""Published rules that need no training, as strategies outside the product, and what they bring beside LoPA."""
