"""Encoders: the launches of each codec, and the results that they leave on the device. `codecs.py` lists them."""
