"""Real engines under the product's own dispatcher, in real time: no Serve, no HTTP, no text.

``cluster`` is to SGLang engines what ``loadgen.virtual`` is to step models; ``engines`` starts them.
"""
