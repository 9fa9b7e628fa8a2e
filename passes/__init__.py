"""Rewrites from one program to the next, one pass a file."""
