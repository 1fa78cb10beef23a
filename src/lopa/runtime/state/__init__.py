"""The state of one request between forwards: its blocks, its branches, and the windows that a forward is given.

Pure functions of numpy arrays. A branch between two rounds is in one canonical form: its grammar has read it as far as
it is unmasked, nothing stands behind its end of text, and the block that it works on next is open.
"""
