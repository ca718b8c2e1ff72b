# Generated from _async by generate.py. Do not edit.
