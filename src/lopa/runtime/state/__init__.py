"""The state of one request between forwards: its blocks, its branches and the rows of a forward.

The functions are pure and take numpy arrays. Between rounds a branch is normalized. Its grammar has read all leading
unmasked tokens, nothing follows its end of text, and its next block is open.
"""
