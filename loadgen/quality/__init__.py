"""Answer quality under the orders that policies dispatch: what reordering costs in answers, if anything."""
