"""What SGLang needs to serve on a machine without a GPU: environment, arguments, attention.

Not the engine adapter itself, which is the same for both kinds of machine.
"""
