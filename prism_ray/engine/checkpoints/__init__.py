"""Model directories for the CPU engine: where they lie, and how each one is made.

``smollm2`` fetches and converts a small real model; ``random_llama`` writes models of random weights.
Nothing here runs an engine, and torch and transformers are imported only while a model is written.
"""
