"""The parts of the fusion passes: the graph they work on, their rules, their thresholds."""
