"""Tests of kernels, most of which run as processes of their own."""
