"""Elements that programs of launches work on. Tests make them small."""

TILE = 2048
CHUNK = 65536
"""Elements that the core sums up in one piece."""
PIECE = 8192
"""Elements that the program of a sum corrects at a time."""
UNROLL = 32
"""Rows of 16 elements that a program of a sum loads at a time."""
SLOTS = 2048
"""Slots of kept elements, or more, that a program looks at."""
SPAN = 16
"""Tiles of a program that has work after a NaN or Inf only."""
BLOCK = 1024
"""Kept elements of a program."""
