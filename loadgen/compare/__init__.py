"""The side-by-side on real engines: SGLang's own policies and ours, same prompts, arrivals and pool.

``arms`` says who is compared, ``workload`` what they serve, ``machine`` on what; ``native`` runs
SGLang's own server, ``session`` an arm of either kind; ``runs`` keeps one JSON a run, with what
``provenance`` says of the machine; ``tables`` and ``page`` read them. Everything
but ``prediction`` is measured.
"""
