"""Records of runs as tables, plots and one self-contained page."""
