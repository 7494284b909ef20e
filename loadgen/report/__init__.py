"""From the run files of a measurement to JSON, CSV and one HTML page with plots. Sends nothing.

Everything is computed again from raw rows, so a report can be made anew from its directory.
"""
