"""The papers' tables and figures again, simulated, with verdicts computed from what the runs say."""
